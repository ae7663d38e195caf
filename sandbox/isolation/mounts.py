"""The kernel's mount calls as the launcher uses them; a part of the launcher.

A tree of mounts is taken in hand detached from every path (`clone_tree`), restricted while nobody
sees it, and attached where it belongs. So nothing is resolved in the machine's own tree once the
sandbox's root is in place.
"""

import ctypes
import os
import stat
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would take longer than all the rest
    from typing import Any

    Specification = dict[str, Any]

STAGE = "/tmp"  # noqa: S108 - only inside the private mount namespace
NEW_NET, NEW_NS, NEW_CGROUP = 0x40000000, 0x00020000, 0x02000000
NEW_UTS, NEW_IPC, NEW_USER, NEW_PID = 0x04000000, 0x08000000, 0x10000000, 0x20000000
READ_ONLY, NO_SUID, NO_DEVICES, NO_PROGRAMS = 0x1, 0x2, 0x4, 0x8  # the same in old and new calls

_BIND, _REC, _PRIVATE, _DETACH = 0x1000, 0x4000, 0x40000, 0x2
# mount calls that libc does not wrap: kernel 5.2, and 5.12 for the attributes
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_PIVOT_ROOT = 155
_HERE, _EMPTY_PATH, _RECURSIVE = -100, 0x1000, 0x8000
_CLONE, _CLOSE_ON_EXEC, _MOVE_EMPTY_PATH = 0x1, 0x80000, 0x4
_MOVE_TO_LINK = 0x10  # the place may be a link, e.g. /usr/local/cuda: where it leads
_ATTR_IDMAP = 0x00100000

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    """The result of a libc call; OSError that says what failed when it is negative."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def write(path: str, text: str) -> None:
    """Writes a file of the kernel."""
    with open(path, "w") as file:
        file.write(text)


def unshare(flags: int, what: str) -> None:
    """Leaves namespaces for new ones."""
    check(libc.unshare(flags), f"unshare {what}")


def unshare_machine(spec: "Specification") -> None:
    """Mounts and, for children, PIDs of our own; a normal user needs a user namespace for that."""
    if spec["outside_uid"] == 0:
        unshare(NEW_NS | NEW_PID, "mounts")
    else:
        unshare(NEW_NS | NEW_PID | NEW_USER, "user and mounts")
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{spec['uid']} {spec['outside_uid']} 1")
        write("/proc/self/gid_map", f"{spec['uid']} {spec['outside_gid']} 1")
    check(libc.mount(None, b"/", None, _REC | _PRIVATE, None), "make mounts private")


def mount_tmpfs(where: str, options: str) -> None:
    """Mounts an empty file system in memory."""
    flags = NO_SUID | NO_DEVICES
    check(
        libc.mount(b"tmpfs", where.encode(), b"tmpfs", flags, options.encode()),
        f"mount tmpfs ({options})",
    )


def mount_proc(where: str) -> None:
    """Mounts the processes of the caller's PID namespace."""
    flags = NO_SUID | NO_DEVICES | NO_PROGRAMS
    check(libc.mount(b"proc", where.encode(), b"proc", flags, None), "mount proc")


def clone_tree(path: str, attributes: int) -> int:
    """What is mounted at a path and below, detached and restricted; a descriptor."""
    flags = _CLONE | _CLOSE_ON_EXEC | _RECURSIVE
    tree = check(libc.syscall(_OPEN_TREE, _HERE, os.fsencode(path), flags), f"take {path}")
    set_attributes(tree, attributes)
    return tree


def set_attributes(tree: int, attributes: int) -> None:
    """Adds restrictions to every mount of an open tree; none is ever taken away."""
    values = struct.pack("QQQQ", attributes, 0, 0, 0)
    flags = _EMPTY_PATH | _RECURSIVE
    result = libc.syscall(_MOUNT_SETATTR, tree, b"", flags, values, len(values))
    check(result, "restrict a mount (Linux 5.12 or newer is needed)")


def make_read_only(path: str) -> None:
    """Makes the mount at a path read-only, and not those below."""
    values = struct.pack("QQQQ", READ_ONLY, 0, 0, 0)
    result = libc.syscall(_MOUNT_SETATTR, _HERE, path.encode(), 0, values, len(values))
    check(result, f"make {path} read-only")


def attach(tree: int, target: str) -> None:
    """Mounts a detached tree and closes its descriptor."""
    path = os.fsencode(target)
    moved = libc.syscall(_MOVE_MOUNT, tree, b"", _HERE, path, _MOVE_EMPTY_PATH | _MOVE_TO_LINK)
    check(moved, f"mount {target}")
    os.close(tree)


def enter_root(folder: str) -> None:
    """Makes a mount the root, and lets go of everything that was visible before."""
    os.chdir(folder)
    check(libc.syscall(_PIVOT_ROOT, b".", b"."), "pivot_root")
    check(libc.umount2(b".", _DETACH), "let go of the old root")
    os.chdir("/")


def stage(spec: "Specification", room: int, owner: "int | None") -> None:
    """Mounts below STAGE what the sandbox is made of: `scratch/{box,tmp,shm}` and `ro/INDEX`.

    `owner` is the sandbox's user where files must be given to it, i.e. for root.
    """
    sources = [os.open(path, os.O_PATH | os.O_CLOEXEC) for path in spec["read_only"]]
    mount_tmpfs(STAGE, "mode=0755,size=1m")
    os.mkdir(f"{STAGE}/root")
    os.mkdir(f"{STAGE}/scratch")
    limits = f"mode=0755,size={room},nr_inodes={spec['scratch_files']}"
    mount_tmpfs(f"{STAGE}/scratch", limits)
    for name in ("box", "tmp", "shm"):
        os.mkdir(f"{STAGE}/scratch/{name}", 0o700)
        if owner is not None:
            os.chown(f"{STAGE}/scratch/{name}", owner, owner)
    os.mkdir(f"{STAGE}/ro")
    for index, source in enumerate(sources):
        _stage_source(source, f"{STAGE}/ro/{index}", owner)
        os.close(source)


def _stage_source(source: int, target: str, owner: "int | None") -> None:
    found = os.fstat(source)
    if stat.S_ISDIR(found.st_mode):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    needed = 0o5 if stat.S_ISDIR(found.st_mode) else 0o4
    if owner is not None and found.st_mode & needed != needed:
        _bind_as_own(source, target, owner)
    else:
        path = f"/proc/self/fd/{source}".encode()
        check(libc.mount(path, target.encode(), None, _BIND | _REC, None), f"bind {target}")


def _bind_as_own(source: int, target: str, owner: int) -> None:
    """Binds a tree that only root may read so that it belongs to the sandbox's user inside."""
    mapping = _mapping(owner)
    clone = libc.syscall(_OPEN_TREE, source, b"", _CLONE | _EMPTY_PATH)
    check(clone, "open_tree")
    values = struct.pack("QQQQ", _ATTR_IDMAP, 0, 0, mapping)
    result = libc.syscall(_MOUNT_SETATTR, clone, b"", _EMPTY_PATH, values, len(values))
    check(result, "this file system cannot lend a private folder; make it readable (chmod o+rx)")
    attach(clone, target)
    os.close(mapping)


def _mapping(owner: int) -> int:
    """An open user namespace in which root's files are the owner's."""
    ready, release = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"1" if libc.unshare(NEW_USER) == 0 else b"0")
        os.close(release[1])
        os.read(release[0], 1)
        os._exit(0)
    try:
        if os.read(ready[0], 1) != b"1":
            raise OSError("unshare user")
        proc = f"{STAGE}/proc"  # the machine's own /proc knows our children by other numbers
        if not os.path.isdir(proc):
            os.mkdir(proc)
            mount_proc(proc)
        for name in ("uid_map", "gid_map"):
            write(f"{proc}/{child}/{name}", f"0 {owner} 1")
        return os.open(f"{proc}/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for descriptor in (*ready, *release):
            os.close(descriptor)
        os.waitpid(child, 0)
