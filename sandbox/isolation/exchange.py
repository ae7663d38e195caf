"""The judge's half of what goes into a container and comes out of it; `container` is the other.

What comes out is not trusted: names are taken apart, links are not followed, sizes are bounded.
"""

import contextlib
import os
from collections.abc import Generator, Iterator
from pathlib import Path

from sandbox.isolation.base import SandboxFault
from sandbox.isolation.container import CHUNK, CHUNK_BYTES, DONE, FILE, FOLDER, KEPT
from sandbox.isolation.mirror import FOLDER as OPEN_FOLDER
from sandbox.isolation.mirror import MAX_DEPTH, entries_of, open_folder, remove

_HEAD = 5
_MOST_PAYLOAD = 1 << 20
_LONGEST_NAME = 255
_ONLY_THAT = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """One frame: the kind, the length in four bytes, the payload."""
    return kind + len(payload).to_bytes(4, "big") + payload


def outgoing(workdir: Path) -> Generator[bytes]:
    """The whole work folder as frames; SandboxFault for anything but folders and files."""
    folder = os.open(workdir, OPEN_FOLDER)
    try:
        yield from _outgoing(folder, b"")
    finally:
        os.close(folder)
    yield frame(DONE)


def _outgoing(folder: int, prefix: bytes) -> Iterator[bytes]:
    for entry in entries_of(folder):
        path = prefix + os.fsencode(entry.name)
        if entry.is_dir(follow_symlinks=False):
            yield frame(FOLDER, path)
            inner = open_folder(folder, entry.name)
            try:
                yield from _outgoing(inner, path + b"/")
            finally:
                os.close(inner)
        elif entry.is_file(follow_symlinks=False):
            with open(os.open(entry.name, os.O_RDONLY | _ONLY_THAT, dir_fd=folder), "rb") as file:
                program = os.fstat(file.fileno()).st_mode & 0o100
                yield frame(FILE, (b"x" if program else b"-") + path)
                while chunk := file.read(CHUNK_BYTES):
                    yield frame(CHUNK, chunk)
        else:
            text = os.fsdecode(path)
            raise SandboxFault(
                f"the sandbox failed: {text} in the work folder is not a regular file"
            )


class Frames:
    """Takes bytes as they come and gives whole frames; SandboxFault for what cannot be one."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """(kind, payload) of each frame that is complete by now."""
        self._bytes += data
        while len(self._bytes) >= _HEAD:
            length = int.from_bytes(self._bytes[1:_HEAD], "big")
            if length > _MOST_PAYLOAD:
                raise SandboxFault("the container sends what no sandbox sends")
            if len(self._bytes) < _HEAD + length:
                return
            kind, payload = bytes(self._bytes[:1]), bytes(self._bytes[_HEAD : _HEAD + length])
            del self._bytes[: _HEAD + length]
            yield kind, payload


class Inbox:
    """Makes the work folder what a container says it is: folders and regular files, `room` bytes.

    What the container does not name is deleted by `finish`. SandboxFault for a name that leads out
    of the work folder, or a content nobody asked for.
    """

    def __init__(self, workdir: Path, room: int) -> None:
        self._workdir = os.open(workdir, OPEN_FOLDER)
        self._room = room
        self._named: set[tuple[str, ...]] = set()
        self._writer = -1

    def take(self, kind: bytes, payload: bytes) -> None:
        """One frame of kind FOLDER, FILE, CHUNK or KEPT."""
        if kind == CHUNK:
            self._write(payload)
            return
        self._close_writer()
        path = _path(payload[1:] if kind == FILE else payload)
        self._named.add(path)
        if kind == KEPT:
            return
        parent = self._open_parent(path)
        try:
            if kind == FOLDER:
                _make_folder(parent, path[-1])
            else:
                self._writer = _make_file(parent, path[-1], program=payload[:1] == b"x")
        finally:
            os.close(parent)

    def finish(self) -> None:
        """Deletes what was not named."""
        self._close_writer()
        self._sweep(self._workdir, ())

    def close(self) -> None:
        """Closes what is open."""
        self._close_writer()
        os.close(self._workdir)

    def _write(self, payload: bytes) -> None:
        self._room -= len(payload)
        if self._writer < 0 or self._room < 0:
            raise SandboxFault("the container sends more than its work folder can hold")
        view = memoryview(payload)
        while view:
            view = view[os.write(self._writer, view) :]

    def _close_writer(self) -> None:
        if self._writer >= 0:
            os.close(self._writer)
        self._writer = -1

    def _open_parent(self, path: tuple[str, ...]) -> int:
        folder = os.dup(self._workdir)
        for name in path[:-1]:
            try:
                inner = open_folder(folder, name)
            except OSError as error:
                raise SandboxFault(f"the container names no folder {name!r}: {error}") from error
            finally:
                os.close(folder)
            folder = inner
        return folder

    def _sweep(self, folder: int, at: tuple[str, ...]) -> None:
        for entry in entries_of(folder):
            here, is_folder = (*at, entry.name), entry.is_dir(follow_symlinks=False)
            if here not in self._named:
                remove(folder, entry.name, is_folder)
            elif is_folder:
                inner = open_folder(folder, entry.name)
                self._sweep(inner, here)
                os.close(inner)


def _path(payload: bytes) -> tuple[str, ...]:
    parts = tuple(os.fsdecode(part) for part in payload.split(b"/"))
    wrong = any(
        part in ("", ".", "..") or "\0" in part or len(os.fsencode(part)) > _LONGEST_NAME
        for part in parts
    )
    if wrong or len(parts) > MAX_DEPTH:
        raise SandboxFault(f"the container names an impossible path {payload[:80]!r}")
    return parts


def _make_folder(parent: int, name: str) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        if not _is_folder(parent, name):
            os.unlink(name, dir_fd=parent)
            os.mkdir(name, 0o755, dir_fd=parent)


def _make_file(parent: int, name: str, *, program: bool) -> int:
    """A new file in the place of whatever has that name; its descriptor."""
    with contextlib.suppress(FileNotFoundError):
        remove(parent, name, _is_folder(parent, name))
    mode = 0o755 if program else 0o644
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _ONLY_THAT
    descriptor = os.open(name, flags, mode, dir_fd=parent)
    os.fchmod(descriptor, mode)
    return descriptor


def _is_folder(parent: int, name: str) -> bool:
    found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    return (found.st_mode & 0o170000) == 0o040000
