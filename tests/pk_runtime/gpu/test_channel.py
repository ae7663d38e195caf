"""Messages and descriptors between processes, over real sockets."""

import array
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pk_runtime.gpu.channel import (
    MAX_BYTES,
    MAX_FILES,
    Channel,
    ChannelClosed,
    ChannelError,
    ChannelTimeout,
    Listener,
    adopt,
    connect,
    pair,
)

SOON = 0.05
LONG = 20.0


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = pair()
    yield one, other
    one.close()
    other.close()


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, Channel]]:
    """A socket that says what it likes, and the channel that listens to it."""
    one, other = socket.socketpair()
    with one:
        channel = Channel(other)
        yield one, channel
        channel.close()


def header(length: int, files: int) -> bytes:
    return struct.pack(">IB", length, files)


def memory(content: bytes) -> int:
    descriptor = os.memfd_create("test")
    os.write(descriptor, content)
    return descriptor


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_messages_arrive_whole_and_in_order(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    bodies = [{"n": n, "text": "ü" * n} for n in (0, 1, 1000)]
    for body in bodies:
        one.send(body, timeout_s=LONG)
    assert [other.receive(timeout_s=LONG).body for _ in bodies] == bodies
    other.send({"back": True}, timeout_s=LONG)
    assert one.receive(timeout_s=LONG).body == {"back": True}


def test_the_largest_message_passes_a_larger_one_does_not(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    room = MAX_BYTES - len(json.dumps({"x": ""}))
    sender = threading.Thread(target=lambda: one.send({"x": "a" * room}, timeout_s=LONG))
    sender.start()
    assert len(other.receive(timeout_s=LONG).body["x"]) == room
    sender.join(LONG)
    with pytest.raises(ValueError, match="at most 1048576 bytes"):
        one.send({"x": "a" * (room + 1)}, timeout_s=LONG)
    with pytest.raises(ValueError, match="32 files"):
        one.send({}, [0] * (MAX_FILES + 1), timeout_s=LONG)


def test_descriptors_are_passed_and_stay_open_at_the_sender(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    files = [memory(f"content {n}".encode()) for n in range(MAX_FILES)]
    one.send({"files": len(files)}, files, timeout_s=LONG)
    one.send({"next": 1}, timeout_s=LONG)
    message = other.receive(timeout_s=LONG, files=MAX_FILES)
    assert len(message.files) == MAX_FILES
    for number, (sent, got) in enumerate(zip(files, message.files, strict=True)):
        assert os.pread(got, 100, 0) == f"content {number}".encode()
        assert not os.get_inheritable(got)
        os.pwrite(got, b"changed", 0)
        assert os.pread(sent, 7, 0) == b"changed"
        os.close(sent)
    message.close()
    assert other.receive(timeout_s=LONG).body == {"next": 1}


@pytest.mark.parametrize(("sent", "expected"), [(1, 0), (2, 1), (9, 2)])
def test_unasked_descriptors_are_refused_and_closed(
    ends: tuple[Channel, Channel], sent: int, expected: int
) -> None:
    one, other = ends
    files = [memory(b"") for _ in range(sent)]
    one.send({}, files, timeout_s=LONG)
    before = open_files()
    with pytest.raises(ChannelError, match="files"):
        other.receive(timeout_s=LONG, files=expected)
    assert open_files() == before
    for descriptor in files:
        os.close(descriptor)


def test_descriptors_of_a_message_that_breaks_off_are_closed(
    raw: tuple[socket.socket, Channel],
) -> None:
    sender, channel = raw
    descriptor = memory(b"")
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))
    sender.sendmsg([header(10, 1) + b"{"], [rights])
    sender.shutdown(socket.SHUT_WR)
    before = open_files()
    with pytest.raises(ChannelClosed, match="within a message"):
        channel.receive(timeout_s=LONG, files=1)
    assert open_files() == before
    os.close(descriptor)


def test_a_lie_about_the_number_of_descriptors_is_seen(raw: tuple[socket.socket, Channel]) -> None:
    sender, channel = raw
    sender.sendall(header(2, 1) + b"{}")
    with pytest.raises(ChannelError, match="sends 1 files; expected 1"):
        channel.receive(timeout_s=LONG, files=1)


def test_an_oversized_message_is_refused_before_it_is_read(
    raw: tuple[socket.socket, Channel],
) -> None:
    sender, channel = raw
    sender.sendall(header(MAX_BYTES + 1, 0))
    with pytest.raises(ChannelError, match=f"sends {MAX_BYTES + 1} bytes"):
        channel.receive(timeout_s=LONG)


@pytest.mark.parametrize("data", [b"{", b"[" * 200_000, b"[1]", b"null", b"\xff\xff", b""])
def test_what_is_no_json_object_is_refused(raw: tuple[socket.socket, Channel], data: bytes) -> None:
    sender, channel = raw
    writer = threading.Thread(target=lambda: sender.sendall(header(len(data), 0) + data))
    writer.start()
    with pytest.raises(ChannelError, match="JSON"):
        channel.receive(timeout_s=LONG)
    writer.join(LONG)


def test_silence_ends_at_the_deadline(ends: tuple[Channel, Channel]) -> None:
    _, other = ends
    with pytest.raises(ChannelTimeout, match=r"did not send within 0\.05 s"):
        other.receive(timeout_s=SOON)


def test_a_trickle_does_not_move_the_deadline(raw: tuple[socket.socket, Channel]) -> None:
    sender, channel = raw
    stop = threading.Event()

    def trickle() -> None:
        sender.sendall(header(1000, 0))
        while not stop.wait(0.01):
            sender.sendall(b" ")

    writer = threading.Thread(target=trickle)
    writer.start()
    with pytest.raises(ChannelTimeout):
        channel.receive(timeout_s=0.2)
    stop.set()
    writer.join(LONG)


def test_a_reader_that_does_not_read_ends_the_send(ends: tuple[Channel, Channel]) -> None:
    one, _ = ends

    def fill() -> None:
        for _ in range(100):
            one.send({"x": "a" * 500_000}, timeout_s=SOON)

    with pytest.raises(ChannelTimeout, match="did not read"):
        fill()


def test_a_closed_end_is_told(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    one.send({"last": 1}, timeout_s=LONG)
    one.close()
    assert other.receive(timeout_s=LONG).body == {"last": 1}
    with pytest.raises(ChannelClosed):
        other.receive(timeout_s=LONG)
    with pytest.raises(ChannelClosed):
        other.send({}, timeout_s=LONG)


def test_a_bad_descriptor_is_the_senders_error(ends: tuple[Channel, Channel]) -> None:
    one, _ = ends
    with pytest.raises(ChannelError, match="Bad file descriptor"):
        one.send({}, [10**6], timeout_s=LONG)


def test_connecting_may_come_before_listening(tmp_path: Path) -> None:
    path = tmp_path / "door"
    found: list[Channel] = []
    early = threading.Thread(target=lambda: found.append(connect(path, timeout_s=LONG)))
    early.start()
    time.sleep(SOON)
    listener = Listener(path)
    assert path.stat().st_mode & 0o777 == 0o600
    accepted = listener.accept(timeout_s=LONG)
    early.join(LONG)
    found[0].send({"hello": 1}, timeout_s=LONG)
    assert accepted.receive(timeout_s=LONG).body == {"hello": 1}
    assert accepted.peer() == (os.getpid(), os.getuid())
    listener.close()
    assert not path.exists()
    for channel in (*found, accepted):
        channel.close()


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(ChannelTimeout, match="nobody listens"):
        connect(tmp_path / "door", timeout_s=SOON)
    listener = Listener(tmp_path / "door")
    with pytest.raises(ChannelTimeout, match="nobody connected"):
        listener.accept(timeout_s=SOON)
    with pytest.raises(ChannelError, match="cannot listen"):
        Listener(tmp_path / "door")
    listener.close()
    with pytest.raises(ChannelError, match="at most 107 bytes"):
        connect(tmp_path / ("x" * 120), timeout_s=SOON)


def test_an_end_changes_its_owner(ends: tuple[Channel, Channel]) -> None:
    one, other = ends
    given = adopt(other.detach())
    one.send({"n": 1}, timeout_s=LONG)
    assert given.receive(timeout_s=LONG).body == {"n": 1}
    given.close()
