"""A small program between the judge and bubblewrap, in a Python process of its own.

It exists because four things must happen around bwrap, each in a process of its own:

- what the candidate needs is mounted below /tmp in a private mount namespace first, so that uid
  65534 reaches it although it lies below a 0700 home or in a private folder;
- all that the candidate can write is one tmpfs with a limit on bytes and files, filled from the
  work folder before and copied back after, regular files only, when nothing runs any more;
- the control groups are joined, the user changed and the limits set between fork and exec, in a
  process without threads;
- all of it lives in a PID namespace whose first process is this program's child, so its end
  proves that the whole tree is gone, and nothing survives a judge that is killed.

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

from sandbox.isolation.mirror import FOLDER, Mirror, tree_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would take longer than all the rest
    from types import CodeType
    from typing import Any

    Specification = dict[str, Any]

# Makes modules of the code it is given, so that nothing is searched for or compiled, then runs it.
BOOTSTRAP = """
import marshal, sys
modules, specification = marshal.load(sys.stdin.buffer)
for name, code in modules:
    module = sys.modules[name] = type(sys)(name)
    exec(code, module.__dict__)
module.main(specification)
"""

_NEWNS, _NEWUSER, _NEWPID = 0x00020000, 0x10000000, 0x20000000
_NOSUID, _NODEV, _BIND, _REC, _PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
_SET_PDEATHSIG = 1
_STAGE = "/tmp"  # noqa: S108 - only inside the private mount namespace
_SECCOMP_FD, _BWRAP_STATUS_FD = 3, 4
_MAX_DESCRIPTORS = 4096
_MARGIN_NS = 20_000_000  # files written this shortly before the start count as changed

# mount calls of kernel 5.12 and later that libc does not wrap
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_EMPTY_PATH, _CLONE_TREE, _MOVE_EMPTY_PATH = 0x1000, 0x1 | 0x1000, 0x4
_ATTR_IDMAP = 0x00100000

_modules: "tuple[tuple[str, CodeType], ...]" = ()


def payload(specification: "Specification") -> bytes:
    """What `BOOTSTRAP` expects on standard input; compiled once per process."""
    global _modules
    if not _modules:
        _modules = tuple(map(_compiled, ("mirror", "launcher")))
    return marshal.dumps((_modules, specification))


def _compiled(name: str) -> "tuple[str, CodeType]":
    path = os.path.join(os.path.dirname(__file__), f"{name}.py")
    with open(path, encoding="utf-8") as file:
        return f"{__package__}.{name}", compile(file.read(), name, "exec")


def main(specification: "Specification") -> None:
    """Runs one specification and reports: "started", then "done" with three figures or "error".

    The work is done by a child that is the first process of a PID namespace: when it ends, in
    whatever way, the kernel ends all that it started. It dies with this process, and this one with
    the judge; both look again after asking for that, in case they asked too late.
    """
    status = specification["status"]
    os.set_inheritable(status, False)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        _check(libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
        if os.getppid() != specification["judge"]:
            raise RuntimeError("the judge ended before its sandbox began")
        workdir = os.open(specification["workdir"], FOLDER)
        _unshare(libc, specification)
        alive, ours = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ours)
            _first_process(libc, specification, workdir, alive)
        signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
        _leave_streams()
        os.waitpid(child, 0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except Exception as error:  # noqa: BLE001 - reported whole to the judge, which raises it
        _report(status, error)


def _first_process(
    libc: ctypes.CDLL, specification: "Specification", workdir: int, alive: int
) -> None:
    """The first process of the namespace; never returns."""
    status = specification["status"]
    try:
        _check(libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
        os.set_blocking(alive, False)
        try:
            os.read(alive, 1)
            os._exit(1)  # end of file: whoever started us is gone
        except BlockingIOError:
            pass
        os.write(status, _run(libc, specification, workdir).encode() + b"\n")
    except BaseException as error:  # noqa: BLE001 - reported whole to the judge, which raises it
        _report(status, error)
    os._exit(0)


def _report(status: int, error: BaseException) -> None:
    line = f"error {type(error).__name__}: {error}".replace("\n", " ")
    os.write(status, line.encode(errors="replace") + b"\n")


def _leave_streams() -> None:
    """Closes the output pipes on this side: their end of file means that no candidate is left."""
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)


def _run(libc: ctypes.CDLL, spec: "Specification", workdir: int) -> str:
    room = spec["scratch_bytes"] + tree_bytes(workdir)
    owner = spec["uid"] if spec["outside_uid"] == 0 else None
    box = _stage(libc, spec, room, owner)
    mirror = Mirror(owner, room)
    mirror.fill(workdir, box)
    started_ns, started = time.time_ns(), time.monotonic()
    reader, writer = os.pipe()
    child = _start(libc, spec, writer, owner)
    os.close(writer)
    signal.signal(signal.SIGTERM, lambda *_: _kill(child))
    _leave_streams()
    os.write(spec["status"], b"started\n")
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


def _unshare(libc: ctypes.CDLL, spec: "Specification") -> None:
    """Mounts and, for children, PIDs of our own; a normal user needs a user namespace for that."""
    if spec["outside_uid"] == 0:
        _check(libc.unshare(_NEWNS | _NEWPID), "unshare mounts")
    else:
        _check(libc.unshare(_NEWNS | _NEWPID | _NEWUSER), "unshare user and mounts")
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{spec['uid']} {spec['outside_uid']} 1")
        _write("/proc/self/gid_map", f"{spec['uid']} {spec['outside_gid']} 1")
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
    return os.open(f"{_STAGE}/scratch/box", FOLDER)


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
        proc = f"{_STAGE}/proc"  # the machine's own /proc knows our children by other numbers
        if not os.path.isdir(proc):
            os.mkdir(proc)
            _check(libc.mount(b"proc", proc.encode(), b"proc", _NOSUID | _NODEV, None), "proc")
        for name in ("uid_map", "gid_map"):
            _write(f"{proc}/{child}/{name}", f"0 {owner} 1")
        return os.open(f"{proc}/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
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
            hard = resource.getrlimit(number)[1]
            if hard != resource.RLIM_INFINITY:  # the system's own limit may be lower still
                value = min(value, hard)
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
