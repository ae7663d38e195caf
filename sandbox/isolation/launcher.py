"""A small program between the judge and bubblewrap, in a Python process of its own.

It exists because four things must happen around bwrap, each in a process of its own:

- what the candidate needs is mounted below /tmp in a private mount namespace first, so that uid
  65534 reaches it although it lies below a 0700 home or in a private folder;
- all that the candidate can write is one tmpfs with a limit on bytes and files, filled from the
  work folder before and copied back after, regular files only, when nothing runs any more;
- the control groups are joined, the user changed and the limits set between fork and exec, in a
  process without threads;
- it adopts what bwrap leaves behind, so its own end proves that the whole tree is gone.

Most of an evaluation's overhead is this program's start, so it imports little, and the judge sends
it ready compiled: `BOOTSTRAP` reads code and specification (`bubblewrap._specification`) from
standard input. The result goes to the descriptor that the specification names, as lines.
"""
# ruff: noqa: SIM105 - importing contextlib would take a third of the start

import ctypes
import fcntl
import marshal
import os
import resource
import signal
import stat
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would take longer than all the rest
    from types import CodeType
    from typing import Any

    Specification = dict[str, Any]

BOOTSTRAP = (
    "import marshal, sys; code, specification = marshal.load(sys.stdin.buffer); "
    "exec(code); main(specification)"
)

_NEWNS, _NEWUSER = 0x00020000, 0x10000000
_NOSUID, _NODEV, _BIND, _REC, _PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36
_STAGE = "/tmp"  # noqa: S108 - only inside the private mount namespace
_SECCOMP_FD, _BWRAP_STATUS_FD = 3, 4
_COPY_BYTES = 1 << 26
_MAX_DESCRIPTORS = 4096
_MAX_DEPTH = 16
_PAGE_BYTES = 4096
_MARGIN_NS = 20_000_000  # files written this shortly before the start count as changed
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# mount calls of kernel 5.12 and later that libc does not wrap
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_EMPTY_PATH, _CLONE_TREE, _MOVE_EMPTY_PATH = 0x1000, 0x1 | 0x1000, 0x4
_ATTR_IDMAP = 0x00100000

_code: "CodeType | None" = None


def payload(specification: "Specification") -> bytes:
    """What `BOOTSTRAP` expects on standard input; compiled once per process."""
    global _code
    if _code is None:
        with open(__file__, encoding="utf-8") as file:
            _code = compile(file.read(), "launcher", "exec")
    return marshal.dumps((_code, specification))


def main(specification: "Specification") -> None:
    """Runs one specification and reports: "started", then "done" with three figures or "error"."""
    status = specification["status"]
    os.set_inheritable(status, False)
    try:
        line = _run(specification, status)
    except Exception as error:  # noqa: BLE001 - reported whole to the judge, which raises it
        line = f"error {type(error).__name__}: {error}".replace("\n", " ")
    os.write(status, line.encode(errors="replace") + b"\n")


def _run(spec: "Specification", status: int) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    _check(libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")
    if os.getppid() != spec["judge"]:
        raise RuntimeError("the judge ended before its sandbox began")
    workdir = os.open(spec["workdir"], _FOLDER)
    room = spec["scratch_bytes"] + _tree_bytes(workdir)
    _private_mounts(libc, spec["uid"], spec["outside_uid"], spec["outside_gid"])
    owner = spec["uid"] if spec["outside_uid"] == 0 else None
    box = _stage(libc, spec, room, owner)
    mirror = Mirror(owner, room)
    mirror.fill(workdir, box)
    started_ns, started = time.time_ns(), time.monotonic()
    reader, writer = os.pipe()
    child = _start(libc, spec, writer, owner)
    os.close(writer)
    signal.signal(signal.SIGTERM, lambda *_: _kill(child))
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)  # end of file means: no candidate holds it
    os.write(status, b"started\n")
    bwrap = _wait_for_all(child)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # its number may belong to another process now
    wall_s = time.monotonic() - started
    with os.fdopen(reader, "rb") as documents:
        exit_code = _exit_code(documents.read())
    mirror.bring_back(box, workdir, started_ns - _MARGIN_NS)
    return f"done {exit_code} {bwrap} {wall_s:.6f}"


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _kill(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        pass


# --- mounts -----------------------------------------------------------------------------------


def _private_mounts(libc: ctypes.CDLL, uid: int, outside_uid: int, outside_gid: int) -> None:
    """A mount namespace of our own; for a normal user inside a user namespace of our own."""
    if outside_uid == 0:
        _check(libc.unshare(_NEWNS), "unshare mounts")
    else:
        _check(libc.unshare(_NEWNS | _NEWUSER), "unshare user and mounts")
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {outside_uid} 1")
        _write("/proc/self/gid_map", f"{uid} {outside_gid} 1")
    _check(libc.mount(None, b"/", None, _REC | _PRIVATE, None), "make mounts private")


def _stage(libc: ctypes.CDLL, spec: "Specification", room: int, owner: int | None) -> int:
    """Mounts scratch and read-only sources below /tmp; returns the open work folder in scratch."""
    sources = [os.open(path, os.O_PATH | os.O_CLOEXEC) for path in spec["read_only"]]
    _mount_tmpfs(libc, _STAGE, "mode=0755,size=1m")
    os.mkdir(f"{_STAGE}/scratch")
    limits = f"mode=0755,size={room},nr_inodes={spec['scratch_files']}"
    _mount_tmpfs(libc, f"{_STAGE}/scratch", limits)
    for name in ("box", "tmp", "shm"):
        os.mkdir(f"{_STAGE}/scratch/{name}", 0o700)
        if owner is not None:
            os.chown(f"{_STAGE}/scratch/{name}", owner, owner)
    os.mkdir(f"{_STAGE}/ro")
    for index, source in enumerate(sources):
        target = f"{_STAGE}/ro/{index}"
        found = os.fstat(source)
        if stat.S_ISDIR(found.st_mode):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        needed = 0o5 if stat.S_ISDIR(found.st_mode) else 0o4
        if owner is not None and found.st_mode & needed != needed:
            _bind_as_own(libc, source, target, owner)
        else:
            path = f"/proc/self/fd/{source}".encode()
            _check(libc.mount(path, target.encode(), None, _BIND | _REC, None), f"bind {target}")
        os.close(source)
    return os.open(f"{_STAGE}/scratch/box", _FOLDER)


def _bind_as_own(libc: ctypes.CDLL, source: int, target: str, owner: int) -> None:
    """Binds a tree that only root may read so that it belongs to the sandbox's user inside."""
    mapping = _mapping(libc, owner)
    clone = libc.syscall(_OPEN_TREE, source, b"", _CLONE_TREE)
    if clone < 0:
        _check(clone, "open_tree")
    attributes = struct.pack("QQQQ", _ATTR_IDMAP, 0, 0, mapping)
    result = libc.syscall(_MOUNT_SETATTR, clone, b"", _EMPTY_PATH, attributes, len(attributes))
    _check(result, "this file system cannot lend a private folder; make it readable (chmod o+rx)")
    moved = libc.syscall(_MOVE_MOUNT, clone, b"", -100, target.encode(), _MOVE_EMPTY_PATH)
    _check(moved, "move_mount")
    os.close(mapping)
    os.close(clone)


def _mapping(libc: ctypes.CDLL, owner: int) -> int:
    """An open user namespace in which root's files are the owner's."""
    ready, release = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"1" if libc.unshare(_NEWUSER) == 0 else b"0")
        os.close(release[1])
        os.read(release[0], 1)
        os._exit(0)
    try:
        if os.read(ready[0], 1) != b"1":
            raise OSError("unshare user")
        for name in ("uid_map", "gid_map"):
            _write(f"/proc/{child}/{name}", f"0 {owner} 1")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for descriptor in (*ready, *release):
            os.close(descriptor)
        os.waitpid(child, 0)


def _mount_tmpfs(libc: ctypes.CDLL, where: str, options: str) -> None:
    flags = _NOSUID | _NODEV
    _check(
        libc.mount(b"tmpfs", where.encode(), b"tmpfs", flags, options.encode()),
        f"mount tmpfs ({options})",
    )


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


# --- the process ------------------------------------------------------------------------------


def _start(libc: ctypes.CDLL, spec: "Specification", status: int, owner: int | None) -> int:
    """Forks bwrap with limits, user and groups as specified and an empty environment."""
    filter_fd = os.memfd_create("seccomp")
    os.write(filter_fd, bytes.fromhex(spec["seccomp"]))
    os.lseek(filter_fd, 0, os.SEEK_SET)
    child = os.fork()
    if child:
        os.close(filter_fd)
        return child
    try:
        for procs in spec["procs_files"]:
            _write(procs, "0")
        if owner is not None:
            os.setgroups([])
            os.setresgid(owner, owner, owner)
            os.setresuid(owner, owner, owner)
        # after the change of user, which would clear it
        _check(libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
        for number, value in spec["rlimits"]:
            resource.setrlimit(number, (value, value))
        # above the fixed numbers first: either may already sit on one of them
        filter_fd, status = (fcntl.fcntl(d, fcntl.F_DUPFD_CLOEXEC, 64) for d in (filter_fd, status))
        os.dup2(filter_fd, _SECCOMP_FD)
        os.dup2(status, _BWRAP_STATUS_FD)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.closerange(_BWRAP_STATUS_FD + 1, _MAX_DESCRIPTORS)
        os.execve(spec["argv"][0], spec["argv"], {})  # noqa: S606 - a shell is not wanted
    except BaseException as error:  # noqa: BLE001 - the forked half must never return
        os.write(2, f"launcher: {error}\n".encode())
    os._exit(127)


def _wait_for_all(child: int) -> int:
    """Waits for bwrap and for all that was left to us; returns how bwrap ended."""
    outcome = 0
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            return outcome
        if pid == child:
            outcome = os.waitstatus_to_exitcode(status)


def _exit_code(documents: bytes) -> int:
    """The command's code as bwrap tells it in JSON; -1 if bwrap never got as far as running it."""
    _, found, rest = documents.partition(b'"exit-code":')
    digits = rest.lstrip().split(b" ")[0].split(b"}")[0].split(b",")[0].strip()
    return int(digits) if found and digits.isdigit() else -1


# --- copies -----------------------------------------------------------------------------------


class Mirror:
    """Copies the work folder into scratch and back."""

    def __init__(self, owner: int | None, room: int) -> None:
        self._owner = owner
        self._room = room  # bytes that may come back: sparse files are larger than their disk use
        self._stamps: dict[tuple[str, ...], tuple[int, int]] = {}

    def fill(self, source: int, target: int, at: tuple[str, ...] = ()) -> None:
        """Copies all of the work folder; ValueError for anything but folders and files."""
        for entry in _entries(source):
            here = (*at, entry.name)
            if entry.is_dir(follow_symlinks=False):
                os.mkdir(entry.name, 0o755, dir_fd=target)
                inner, outer = _open(target, entry.name), _open(source, entry.name)
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
        entries = {entry.name: entry for entry in _entries(source)}
        for old in _entries(target):
            new = entries.get(old.name)
            is_folder = old.is_dir(follow_symlinks=False)
            if new is None or new.is_symlink() or new.is_dir() != is_folder:
                _remove(target, old.name, is_folder)
        for name, entry in entries.items():
            here = (*at, name)
            if entry.is_dir(follow_symlinks=False) and len(here) < _MAX_DEPTH:
                try:
                    os.mkdir(name, 0o755, dir_fd=target)
                except FileExistsError:
                    pass
                os.chmod(name, 0o700, dir_fd=source)  # it may be closed even to its owner
                outer, inner = _open(source, name), _open(target, name)
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


def _open(folder: int, name: str) -> int:
    return os.open(name, _FOLDER, dir_fd=folder)


def _entries(folder: int) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)


def _tree_bytes(folder: int) -> int:
    total = 0
    for entry in _entries(folder):
        if entry.is_dir(follow_symlinks=False):
            inner = _open(folder, entry.name)
            total += _tree_bytes(inner)
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


def _remove(folder: int, name: str, is_folder: bool) -> None:
    if not is_folder:
        os.unlink(name, dir_fd=folder)
        return
    inner = _open(folder, name)
    for entry in _entries(inner):
        _remove(inner, entry.name, entry.is_dir(follow_symlinks=False))
    os.close(inner)
    os.rmdir(name, dir_fd=folder)


def _give(descriptor: int, owner: int | None) -> None:
    if owner is not None:
        os.fchown(descriptor, owner, owner)
