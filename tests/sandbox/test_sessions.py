"""Sessions: what the sandboxed process gets, what the judge sees of it, and how it ends."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pk_runtime.execution import Command, ExecutionError, Limits
from sandbox.isolation import NamespaceExecutor, SandboxFault, Session
from sandbox.isolation.interpreter import interpreter_paths
from tests.sandbox.conformance import MIB, SURVIVOR, alive, gone, left_groups

ROOT = Path(__file__).resolve().parent.parent.parent
ANSWER_S = 20.0
ECHO = """
import socket
channel = socket.socket(fileno=3)
while data := channel.recv(65536): channel.sendall(b"echo " + data)
"""

Start = Callable[..., tuple[Session, socket.socket]]


def command(folder: Path, source: str, *arguments: str, wall_s: float = 60, output: int = MIB,
            memory: int = 512 * MIB) -> Command:  # fmt: skip
    """A Python program for a session."""
    return Command(
        (sys.executable, "-I", "-S", "-c", source, *arguments),
        folder,
        interpreter_paths(),
        {"GIVEN": "set"},
        Limits(wall_s, memory, 32, output, 64 * MIB),
    )


@pytest.fixture
def start(namespaces: NamespaceExecutor, folder: Path) -> Iterator[Start]:
    """Starts sessions and gives the judge's end of their channel; ends what a test leaves."""
    begun: list[tuple[Session, socket.socket]] = []

    def starter(
        source: str,
        *arguments: str,
        executor: NamespaceExecutor = namespaces,
        devices: Sequence[Path] = (),
        wall_s: float = 60,
        output: int = MIB,
        memory: int = 512 * MIB,
    ) -> tuple[Session, socket.socket]:
        ours, theirs = socket.socketpair()
        ours.settimeout(ANSWER_S)
        asked = command(folder, source, *arguments, wall_s=wall_s, output=output, memory=memory)
        begun.append((executor.start(asked, channel=theirs, devices=devices), ours))
        assert theirs.fileno() == -1  # it was handed over
        return begun[-1]

    yield starter
    for session, channel in begun:
        channel.close()
        try:
            session.kill()
        except SandboxFault:
            continue


def attempts(*actions: str) -> str:
    """A program that sends a word for each action: whether it was allowed."""
    tried = "".join(
        f"try:\n    {action}\n    words.append('allowed')\n"
        "except (OSError, KeyError): words.append('denied')\n"
        for action in actions
    )
    imports = "import os, socket\nwords = []\n"
    return f"{imports}{tried}socket.socket(fileno=3).sendall(' '.join(words).encode())"


# --- what it gets -------------------------------------------------------------------------------


def test_the_channel_is_descriptor_three_and_nothing_else_is_inherited(start: Start) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    listing = "import os, socket; s = socket.socket(fileno=3)\n"
    listing += "s.sendall(repr(sorted(os.listdir('/proc/self/fd'))).encode())"
    session, channel = start(listing)
    assert channel.recv(100) == b"['0', '1', '2', '3', '4']"  # the last is the listing itself
    assert session.wait(ANSWER_S).ok
    os.close(reader)
    os.close(writer)


def test_both_sides_talk_over_the_channel(start: Start) -> None:
    session, channel = start(ECHO)
    for word in (b"one", b"two"):
        channel.sendall(word)
        assert channel.recv(100) == b"echo " + word
    assert session.poll() is None
    with pytest.raises(TimeoutError, match=r"after 0\.01 s"):
        session.wait(0.01)
    channel.shutdown(socket.SHUT_WR)
    done = session.wait(ANSWER_S)
    assert done.ok
    assert session.poll() == session.kill() == done  # a session that ended keeps its outcome


def test_a_descriptor_passed_in_can_be_used(start: Start) -> None:
    source = """
import mmap, os, socket
channel = socket.socket(fileno=3)
_, received, _, _ = socket.recv_fds(channel, 16, 2)
with mmap.mmap(received[0], 4096) as shared:
    text = shared[:5]
    shared[:5] = text.upper()
channel.sendall(text)
"""
    memory = os.memfd_create("shared")
    os.truncate(memory, 4096)
    os.pwrite(memory, b"hello", 0)
    session, channel = start(source)
    socket.send_fds(channel, [b"x"], [memory])
    assert channel.recv(100) == b"hello"
    assert session.wait(ANSWER_S).ok
    assert os.pread(memory, 5, 0) == b"HELLO"
    os.close(memory)


def test_only_the_devices_that_are_named_are_there(start: Start) -> None:
    node = Path("/dev/tty") if Path("/dev/tty").exists() else Path("/dev/ptmx")
    source = attempts(
        f"os.stat({str(node)!r})",
        "os.stat('/sys/devices')",
        "assert open('/dev/zero', 'rb').read(4) == bytes(4)",
        "open('/dev/null', 'wb').write(b'x')",
        "os.mknod('/tmp/node', 0o020666, os.makedev(1, 5)); open('/tmp/node', 'rb').read(1)",
    )
    _, channel = start(source)
    assert channel.recv(100) == b"denied denied allowed allowed denied"
    _, channel = start(source, devices=(node, Path("/dev/zero")))
    assert channel.recv(100) == b"allowed allowed allowed allowed denied"


def test_a_device_is_read_and_written_at_its_place(start: Start) -> None:
    """A node that every sandbox has anyway, opened for both as a driver's library does."""
    source = attempts(
        "f = os.open('/dev/zero', os.O_RDWR); assert os.read(f, 2) == bytes(2); os.write(f, b'x')",
        "os.chmod('/dev/zero', 0o600)",
        "os.unlink('/dev/zero')",
        "open('/dev/other', 'w')",
    )
    _, channel = start(source, devices=(Path("/dev/zero"),))
    assert channel.recv(100) == b"allowed denied denied denied"


def test_with_devices_the_rest_is_as_closed_as_without(start: Start, folder: Path) -> None:
    secret = folder.with_name(f"{folder.name}-secret")
    secret.write_text("key")
    secret.chmod(0o644)
    source = attempts(
        f"open({str(secret)!r})",
        "open('/sys/kernel/written', 'w')",
        "os.stat('/sys/fs/cgroup')",
        "open('/sys/devices/system/cpu/online', 'r+')",
        "socket.create_connection(('192.0.2.1', 80), 2)",
        "os.environ['HOSTNAME']",
        "os.kill(1, 9); raise OSError",
        "open('/sys/devices/system/cpu/online').read()",
        "open('left', 'w')",
        "os.environ['GIVEN']",
    )
    with socket.create_server(("127.0.0.1", 0)):
        session, channel = start(source, devices=(Path("/dev/zero"),))
        assert channel.recv(200).split() == [b"denied"] * 7 + [b"allowed"] * 3
    assert session.wait(ANSWER_S).ok
    assert (folder / "left").exists()
    secret.unlink()


def test_address_space_is_limited_only_without_devices(namespaces: NamespaceExecutor,
                                                       folder: Path) -> None:  # fmt: skip
    """A driver reserves terabytes. Its memory is bounded all the same: see the next test."""

    class Uncontrolled(NamespaceExecutor):
        """As on a machine without control groups."""

        def __init__(self) -> None:
            super().__init__()
            self._controllers = {}

    source = """
import mmap, socket
try: mmap.mmap(-1, 1 << 40, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000); said = b"allowed"
except OSError: said = b"denied"
socket.socket(fileno=3).sendall(said)
"""
    for devices, expected in (((Path("/dev/zero"),), b"allowed"), ((), b"denied")):
        ours, theirs = socket.socketpair()
        ours.settimeout(ANSWER_S)
        asked = command(folder, source)
        with ours, Uncontrolled().start(asked, channel=theirs, devices=devices) as session:
            assert ours.recv(100) == expected
            assert session.wait(ANSWER_S).ok


@pytest.mark.parametrize("controlled", [True, False])
def test_resident_memory_is_limited_with_devices(
    controlled: bool, start: Start, namespaces: NamespaceExecutor
) -> None:
    executor = NamespaceExecutor()
    if not controlled:
        executor._controllers = {}
    source = "import sys, time; x = b'x' * int(sys.argv[1]); time.sleep(float(sys.argv[2]))"
    zero = (Path("/dev/zero"),)
    fits, _ = start(source, str(32 * MIB), "0", executor=executor, devices=zero, memory=256 * MIB)
    assert fits.wait(ANSWER_S).ok
    hog, _ = start(source, str(900 * MIB), "60", executor=executor, devices=zero, memory=256 * MIB)
    assert hog.wait(ANSWER_S).exceeded == "memory"


# --- how it ends --------------------------------------------------------------------------------


def test_the_deadline_ends_a_session(start: Start, folder: Path) -> None:
    marker = f"marker-{folder.name}"
    source = SURVIVOR.format(detach="os.setsid()", parent="time.sleep(600)")
    session, channel = start(source, marker, wall_s=1.5)
    done = session.wait(ANSWER_S)
    assert (done.exceeded, done.stdout, done.signal) == ("wall", b"born\n", signal.SIGKILL)
    assert channel.recv(1) == b""
    assert gone(marker)


def test_kill_ends_everything_and_says_so(start: Start, folder: Path) -> None:
    marker = f"marker-{folder.name}"
    source = SURVIVOR.format(
        detach="os.setsid()\n    if os.fork() == 0: os.setsid(); os.write(3, b'x')",
        parent="time.sleep(600)",
    )
    session, channel = start(source, marker)
    assert channel.recv(1) == b"x"
    assert len(alive(marker)) >= 3  # the control: they are there
    done = session.kill()
    assert (done.exit_code, done.signal, done.exceeded) == (None, signal.SIGKILL, None)
    assert not done.ok
    assert gone(marker)
    assert channel.recv(1) == b""
    assert not left_groups(os.getpid())


def test_several_sessions_end_together(start: Start) -> None:
    begun = [start(ECHO) for _ in range(4)]
    for _, channel in begun:
        channel.sendall(b"up")
        assert channel.recv(100) == b"echo up"
    for session, _ in begun[:3]:
        session.stop()
    for session, channel in begun[:3]:
        assert session.wait(ANSWER_S).signal == signal.SIGKILL
        assert channel.recv(1) == b""
    last, channel = begun[3]
    channel.sendall(b"still up")  # the control: nobody stopped this one
    assert channel.recv(100) == b"echo still up"
    assert last.poll() is None


@pytest.mark.parametrize("moment_s", [0.0, 0.02, 0.05])
def test_kill_at_any_moment_of_the_start(start: Start, moment_s: float) -> None:
    session, channel = start("import time; time.sleep(600)")
    time.sleep(moment_s)
    done = session.kill()
    assert (done.exit_code, done.signal) == (None, signal.SIGKILL)
    assert channel.recv(1) == b""


def test_too_much_output_ends_a_session(start: Start) -> None:
    fits, _ = start("print('y' * 65536)", output=MIB)
    assert len(fits.wait(ANSWER_S).stdout) == 65537
    session, channel = start("while True: print('y' * 65536)", output=MIB)
    done = session.wait(ANSWER_S)
    assert done.exceeded == "output"
    assert len(done.stdout) == MIB
    assert channel.recv(1) == b""


def test_a_process_that_dies_closes_the_channel(start: Start) -> None:
    for source, code, number in (
        ("raise SystemExit(3)", 3, None),
        ("import os; os.kill(os.getpid(), 11)", None, 11),
        ("import os\nif os.fork() == 0: import time; time.sleep(600)", 0, None),
    ):
        session, channel = start(source)
        assert channel.recv(1) == b""
        done = session.wait(ANSWER_S)
        assert (done.exit_code, done.signal) == (code, number)


def test_the_end_of_a_block_ends_the_session(start: Start) -> None:
    session, channel = start(ECHO)
    channel.sendall(b"there")
    assert channel.recv(100) == b"echo there"
    with session:
        pass
    assert channel.recv(1) == b""
    done = session.poll()
    assert done is not None
    assert done.signal == signal.SIGKILL


def test_a_session_outlives_the_thread_that_started_it(start: Start) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        session, channel = pool.submit(start, ECHO).result()
    channel.sendall(b"still")
    assert channel.recv(100) == b"echo still"
    assert session.poll() is None


@pytest.mark.slow
def test_a_killed_judge_takes_its_sessions_along(folder: Path) -> None:
    marker = f"marker-{folder.name}"
    program = SURVIVOR.format(detach="os.setsid()", parent="time.sleep(600)")
    source = f"""
import socket, time
from pathlib import Path
from sandbox.isolation import NamespaceExecutor
from tests.sandbox.test_sessions import command
executor = NamespaceExecutor()
pairs = [socket.socketpair() for _ in range(2)]
sessions = [executor.start(command(Path({str(folder)!r}), {program!r}, {marker!r}), channel=theirs)
            for _, theirs in pairs]
print("ready", flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", source], cwd=ROOT, stdout=subprocess.PIPE
    ) as judge:
        assert judge.stdout is not None
        assert judge.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + ANSWER_S
        while len(alive(marker)) < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(alive(marker)) >= 4
        judge.send_signal(signal.SIGKILL)
    assert gone(marker)


# --- what goes wrong ------------------------------------------------------------------------------


def test_bad_arguments_are_refused_and_the_channel_is_closed(
    namespaces: NamespaceExecutor, folder: Path
) -> None:
    inet = (socket.socket(), socket.socket(socket.AF_INET))
    missing = [Path("/dev/no-such-device")]
    cases: list[tuple[tuple[socket.socket, socket.socket], list[Path], str]] = [
        (socket.socketpair(), missing, "no-such-device"),
        (inet, [], "Unix socket"),
    ]
    for (ours, theirs), devices, words in cases:
        with ours, pytest.raises(ExecutionError, match=words):
            namespaces.start(command(folder, "pass"), channel=theirs, devices=devices)
        assert theirs.fileno() == -1


def test_a_sandbox_that_fails_shows_in_the_session(start: Start, folder: Path) -> None:
    (folder / "link").symlink_to("/etc/passwd")
    session, channel = start("pass")
    assert channel.recv(1) == b""
    with pytest.raises(SandboxFault, match="not a regular file"):
        session.wait(ANSWER_S)
    with pytest.raises(SandboxFault, match="not a regular file"):
        session.poll()
    with pytest.raises(SandboxFault, match="not a regular file"):
        session.kill()
