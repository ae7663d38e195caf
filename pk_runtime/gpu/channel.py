"""Messages and open files between processes of one machine, over a Unix stream socket.

A message is a JSON object and up to MAX_FILES file descriptors. On the wire: four bytes of length
(big endian), one byte with the number of descriptors, which travel with the first byte, then the
JSON. The other end may be hostile: sizes are bounded before anything is read, descriptors that were
not asked for are closed, and every call has a deadline.
"""

import array
import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_FILES = 32
MAX_BYTES = 1 << 20
_HEADER = struct.Struct(">IB")
_INT_BYTES = array.array("i").itemsize
_PATH_BYTES = 107  # of sockaddr_un, less the closing zero
_RETRY_S = 0.005


class ChannelError(RuntimeError):
    """The other end broke the rules of messages; what it did."""


class ChannelClosed(ChannelError):  # noqa: N818  a ChannelError already says it
    """The other end is gone."""


class ChannelTimeout(ChannelError):  # noqa: N818  a ChannelError already says it
    """The other end did not do its part by the deadline."""


@dataclass(frozen=True)
class Message:
    """What arrived. The receiver owns the descriptors and closes them."""

    body: dict[str, Any]
    files: tuple[int, ...] = ()

    def close(self) -> None:
        """Closes the descriptors."""
        _close_files(self.files)


class Channel:
    """One end of a connection. Not for two threads at once in the same direction."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def fileno(self) -> int:
        """The socket's descriptor, to be waited for together with others."""
        return self._socket.fileno()

    def send(self, body: Mapping[str, Any], files: Sequence[int] = (), *, timeout_s: float) -> None:
        """Sends a message; `files` stay open here.

        ChannelTimeout if the other end does not read, ChannelClosed if it is gone, ValueError for a
        message that is too large.
        """
        data = json.dumps(body, allow_nan=False).encode()
        if len(data) > MAX_BYTES or len(files) > MAX_FILES:
            raise ValueError(
                f"a message has at most {MAX_BYTES} bytes and {MAX_FILES} files, "
                f"not {len(data)} and {len(files)}"
            )
        deadline = time.monotonic() + timeout_s
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        rest = memoryview(_HEADER.pack(len(data), len(files)) + data)
        while rest:
            self._arm(deadline, "read", timeout_s)
            try:
                sent = self._socket.sendmsg([rest], rights)
            except TimeoutError:
                raise _late("read", timeout_s) from None
            except OSError as error:
                raise _broken(error) from error
            rest, rights = rest[sent:], []

    def receive(self, *, timeout_s: float, files: int = 0) -> Message:
        """The next message; it may bring at most `files` descriptors.

        ChannelTimeout without a whole message by the deadline, ChannelClosed at the end,
        ChannelError for a message against the rules. After an error the channel is of no more use.
        """
        deadline = time.monotonic() + timeout_s
        received: list[int] = []
        try:
            header = self._read_header(deadline, timeout_s, files, received)
            length, count = _HEADER.unpack(header)
            if length > MAX_BYTES:
                raise ChannelError(f"the other end sends {length} bytes; at most {MAX_BYTES}")
            if count != len(received) or count > files:
                raise ChannelError(
                    f"the other end sends {max(count, len(received))} files; expected {files}"
                )
            data = self._read(length, deadline, timeout_s)
            return Message(_parsed(data), tuple(received))
        except BaseException:
            _close_files(received)
            raise

    def peer(self) -> tuple[int, int]:
        """Process id and user id of the other end, as the kernel vouches for them."""
        size = struct.calcsize("3i")
        raw = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, user, _ = struct.unpack("3i", raw)
        return pid, user

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()

    def detach(self) -> int:
        """Gives the socket's descriptor away, e.g. to a new process; see `adopt`."""
        return self._socket.detach()

    def _read_header(
        self, deadline: float, timeout_s: float, files: int, received: list[int]
    ) -> bytes:
        """The fixed part of a message. Descriptors come with its first byte, into `received`."""
        header = b""
        space = socket.CMSG_SPACE(max(files, 1) * _INT_BYTES)
        while len(header) < _HEADER.size:
            self._arm(deadline, "send", timeout_s)
            try:
                part, ancillary, flags, _ = self._socket.recvmsg(
                    _HEADER.size - len(header), space, socket.MSG_CMSG_CLOEXEC
                )
            except TimeoutError:
                raise _late("send", timeout_s) from None
            except OSError as error:
                raise _broken(error) from error
            received += _files(ancillary)
            if flags & socket.MSG_CTRUNC:
                raise ChannelError("the other end sends more files than expected")
            if not part:
                raise ChannelClosed("the other end of the channel is closed")
            header += part
        return header

    def _read(self, count: int, deadline: float, timeout_s: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            self._arm(deadline, "send", timeout_s)
            try:
                part = self._socket.recv(count - len(data))
            except TimeoutError:
                raise _late("send", timeout_s) from None
            except OSError as error:
                raise _broken(error) from error
            if not part:
                raise ChannelClosed("the other end of the channel closed it within a message")
            data += part
        return bytes(data)

    def _arm(self, deadline: float, verb: str, timeout_s: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise _late(verb, timeout_s)
        self._socket.settimeout(left)


class Listener:
    """Waits for others at a path. `close` removes the path."""

    def __init__(self, path: Path, backlog: int = 64) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.bind(_address(path))
            path.chmod(0o600)
            self._socket.listen(backlog)
        except OSError as error:
            self._socket.close()
            raise ChannelError(f"cannot listen at {path}: {error}") from error

    def accept(self, *, timeout_s: float) -> Channel:
        """The next one that connects; ChannelTimeout if nobody does."""
        self._socket.settimeout(max(timeout_s, 1e-3))
        try:
            connection, _ = self._socket.accept()
        except TimeoutError:
            raise ChannelTimeout(f"nobody connected within {timeout_s:.3g} s") from None
        return Channel(connection)

    def close(self) -> None:
        """Stops listening and removes the path."""
        self._socket.close()
        with contextlib.suppress(OSError):
            self._path.unlink()


def connect(path: Path, *, timeout_s: float) -> Channel:
    """Connects to a listener, which may start later; ChannelTimeout if there is none in time."""
    deadline = time.monotonic() + timeout_s
    address = _address(path)
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        try:
            connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError, TimeoutError):
            connection.close()
        except OSError as error:
            connection.close()
            raise ChannelError(f"cannot connect to {path}: {error}") from error
        else:
            return Channel(connection)
        if time.monotonic() > deadline:
            raise ChannelTimeout(f"nobody listens at {path} within {timeout_s:.3g} s")
        time.sleep(_RETRY_S)


def pair() -> tuple[Channel, Channel]:
    """Two connected ends, for a process and one that it starts."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(one), Channel(other)


def adopt(descriptor: int) -> Channel:
    """The end that another process detached and left open for this one."""
    return Channel(socket.socket(fileno=descriptor))


def _address(path: Path) -> str:
    if len(os.fsencode(path)) > _PATH_BYTES:
        raise ChannelError(f"{path}: a socket's path has at most {_PATH_BYTES} bytes")
    return str(path)


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ChannelError("the other end sends something that is not JSON") from error
    if not isinstance(body, dict):
        raise ChannelError("the other end sends JSON that is not an object")
    return body


def _files(ancillary: Iterable[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % _INT_BYTES])
    return list(found)


def _close_files(files: Iterable[int]) -> None:
    for descriptor in files:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _broken(error: OSError) -> ChannelError:
    if isinstance(error, BrokenPipeError | ConnectionError):
        return ChannelClosed(f"the other end of the channel is gone: {error}")
    return ChannelError(f"the channel failed: {error}")


def _late(verb: str, timeout_s: float) -> ChannelTimeout:
    return ChannelTimeout(f"the other end did not {verb} within {timeout_s:.3g} s")
