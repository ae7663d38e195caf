"""The copies between a work folder and the sandbox's scratch; a part of the launcher.

What a candidate left is not trusted: folders and regular files with one name come back, nothing
else, and no more bytes than scratch may hold.
"""
# ruff: noqa: SIM105 - importing contextlib would take a third of the launcher's start

import os

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_COPY_BYTES = 1 << 26
MAX_DEPTH = 16
_PAGE_BYTES = 4096


class Mirror:
    """Copies the work folder into scratch and back."""

    def __init__(self, owner: int | None, room: int) -> None:
        self._owner = owner
        self._room = room  # bytes that may come back: sparse files are larger than their disk use
        self._stamps: dict[tuple[str, ...], tuple[int, int]] = {}

    def fill(self, source: int, target: int, at: tuple[str, ...] = ()) -> None:
        """Copies all of the work folder; ValueError for anything but folders and files."""
        for entry in entries_of(source):
            here = (*at, entry.name)
            if entry.is_dir(follow_symlinks=False):
                os.mkdir(entry.name, 0o755, dir_fd=target)
                inner, outer = open_folder(target, entry.name), open_folder(source, entry.name)
                _give(inner, self._owner)
                self.fill(outer, inner, here)
                os.close(inner)
                os.close(outer)
            elif entry.is_file(follow_symlinks=False):
                copy = _copy_file(source, target, entry.name)
                _give(copy, self._owner)
                found = os.fstat(copy)
                self._stamps[here] = (found.st_ino, found.st_ctime_ns)
                os.close(copy)
            else:
                raise ValueError(f"{'/'.join(here)} in the work folder is not a regular file")

    def bring_back(self, source: int, target: int, since: int, at: tuple[str, ...] = ()) -> None:
        """Makes the work folder what was left in scratch: folders and single-link files only.

        Files untouched since the filling and older than `since` (ns) are not written again.
        """
        entries = {entry.name: entry for entry in entries_of(source)}
        for old in entries_of(target):
            new = entries.get(old.name)
            is_folder = old.is_dir(follow_symlinks=False)
            if new is None or new.is_symlink() or new.is_dir() != is_folder:
                remove(target, old.name, is_folder)
        for name, entry in entries.items():
            here = (*at, name)
            if entry.is_dir(follow_symlinks=False) and len(here) < MAX_DEPTH:
                try:
                    os.mkdir(name, 0o755, dir_fd=target)
                except FileExistsError:
                    pass
                os.chmod(name, 0o700, dir_fd=source)  # it may be closed even to its owner
                outer, inner = open_folder(source, name), open_folder(target, name)
                self.bring_back(outer, inner, since, here)
                os.close(outer)
                os.close(inner)
            elif entry.is_file(follow_symlinks=False) and self._wanted(entry, here, since):
                os.close(_copy_file(source, target, name))

    def _wanted(self, entry: os.DirEntry[str], here: tuple[str, ...], since: int) -> bool:
        found = entry.stat(follow_symlinks=False)
        unchanged = self._stamps.get(here) == (found.st_ino, found.st_ctime_ns)
        if unchanged and found.st_ctime_ns < since:
            return False
        self._room -= found.st_size
        return found.st_nlink == 1 and self._room >= 0


def open_folder(folder: int, name: str) -> int:
    """A folder in an open folder, opened without following links."""
    return os.open(name, FOLDER, dir_fd=folder)


def entries_of(folder: int) -> list[os.DirEntry[str]]:
    """What is in an open folder."""
    with os.scandir(folder) as entries:
        return list(entries)


def tree_bytes(folder: int) -> int:
    """What the files of an open folder take at most in a tmpfs, in bytes."""
    total = 0
    for entry in entries_of(folder):
        if entry.is_dir(follow_symlinks=False):
            inner = open_folder(folder, entry.name)
            total += tree_bytes(inner)
            os.close(inner)
        else:
            total += entry.stat(follow_symlinks=False).st_size + _PAGE_BYTES
    return total


def _copy_file(source: int, target: int, name: str) -> int:
    """Copies one regular file; returns the copy, open. Existing files are replaced, not written."""
    try:
        os.unlink(name, dir_fd=target)
    except FileNotFoundError:
        pass
    read = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    reader = os.open(name, read, dir_fd=source)
    mode = 0o755 if os.fstat(reader).st_mode & 0o100 else 0o644
    write = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    writer = os.open(name, write, mode, dir_fd=target)
    os.fchmod(writer, mode)
    while os.sendfile(writer, reader, None, _COPY_BYTES):
        pass
    os.close(reader)
    return writer


def remove(folder: int, name: str, is_folder: bool) -> None:
    """Deletes an entry of an open folder, with all that it holds."""
    if not is_folder:
        os.unlink(name, dir_fd=folder)
        return
    inner = open_folder(folder, name)
    for entry in entries_of(inner):
        remove(inner, entry.name, entry.is_dir(follow_symlinks=False))
    os.close(inner)
    os.rmdir(name, dir_fd=folder)


def _give(descriptor: int, owner: int | None) -> None:
    if owner is not None:
        os.fchown(descriptor, owner, owner)
