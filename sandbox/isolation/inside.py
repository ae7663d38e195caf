"""A sandbox made with nothing but the kernel; a part of the launcher.

`start` is called by the launcher's first process, which has staged what the sandbox may see, and
makes three things that follow one another: a PID namespace whose first process builds a root of
its own and then gives up every right; the command, its child; and the line that tells how the
command ended, in bwrap's words.
"""

import fcntl
import os
import signal
import struct

from sandbox.isolation.mounts import (
    NEW_CGROUP,
    NEW_IPC,
    NEW_NET,
    NEW_NS,
    NEW_PID,
    NEW_UTS,
    NO_DEVICES,
    NO_SUID,
    READ_ONLY,
    STAGE,
    attach,
    check,
    clone_tree,
    enter_root,
    libc,
    make_read_only,
    mount_proc,
    mount_tmpfs,
    unshare,
    write,
)
from sandbox.isolation.process import (
    MAX_DESCRIPTORS,
    default_signals,
    filter_system_calls,
    give_up_privileges,
    join_groups,
    set_limits,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would take longer than all the rest
    from typing import Any

    Specification = dict[str, Any]

CHANNEL = 3  # where the command finds its end of the channel, if it has one

_ROOT = f"{STAGE}/root"
_DEVICES = ("null", "zero", "full", "random", "urandom")
_DEVICE_LINKS = {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}
_PROC_READ_ONLY = ("sys", "sysrq-trigger", "irq", "bus")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - inside the sandbox
_SYSTEM = READ_ONLY | NO_SUID | NO_DEVICES
_DEVICE = READ_ONLY | NO_SUID  # read-only is the node, not what it stands for
_SCRATCH = NO_SUID | NO_DEVICES
_NAME = b"sandbox"
_SET_INTERFACE_FLAGS, _UP = 0x8914, 0x1
_SIGNAL_BASE = 128
_NOT_STARTED = 127


def start(spec: "Specification", status: int, owner: "int | None") -> int:
    """Forks the sandbox's first process and returns its number; the sandbox ends with it."""
    unshare(NEW_PID, "processes")
    child = os.fork()
    if child:
        return child
    try:
        _first_process(spec, status, owner)
    except BaseException as error:  # noqa: BLE001 - the forked half must never return
        os.write(2, f"launcher: {error}\n".encode(errors="replace"))
    os._exit(_NOT_STARTED)


def _first_process(spec: "Specification", status: int, owner: "int | None") -> None:
    # Without handlers, signals from inside do not reach the first process of a namespace.
    default_signals()
    join_groups(spec["procs_files"])
    unshare(NEW_NS | NEW_NET | NEW_IPC | NEW_UTS | NEW_CGROUP, "network, mounts and names")
    _bring_up_loopback()
    check(libc.sethostname(_NAME, len(_NAME)), "sethostname")
    check(libc.setdomainname(_NAME, len(_NAME)), "setdomainname")
    _make_root(spec)
    give_up_privileges(owner)
    filter_system_calls(bytes.fromhex(spec["seccomp"]))
    failure, failed = os.pipe()
    command = os.fork()
    if command == 0:
        become_command(spec, failed)
    _close_all_but(failure, status)  # the streams and the channel are the command's alone
    while True:
        pid, outcome = os.wait()
        if pid == command:
            break
    if os.read(failure, 1):
        os._exit(_NOT_STARTED)
    code = os.waitstatus_to_exitcode(outcome)
    code = _SIGNAL_BASE - code if code < 0 else code
    os.write(status, f'{{"exit-code": {code}}}\n'.encode())
    os._exit(0)


def _close_all_but(*kept: int) -> None:
    low = 0
    for descriptor in (*sorted(kept), MAX_DESCRIPTORS):
        os.closerange(low, descriptor)
        low = descriptor + 1


def _bring_up_loopback() -> None:
    descriptor = check(libc.socket(2, 2, 0), "socket")
    fcntl.ioctl(descriptor, _SET_INTERFACE_FLAGS, struct.pack("16sh22x", b"lo", _UP))
    os.close(descriptor)


# --- the root -----------------------------------------------------------------------------------


def _make_root(spec: "Specification") -> None:
    """Takes in hand what shall be visible, leaves the machine's tree, and puts it in its place."""
    trees = _take(spec)
    mount_tmpfs(_ROOT, "mode=0755,size=1m")
    os.mkdir(f"{_ROOT}/proc")
    mount_proc(f"{_ROOT}/proc")  # before the machine's own is out of sight: the kernel compares
    if spec["outside_uid"] != 0:
        write(f"{_ROOT}/proc/sys/user/max_user_namespaces", "0")
    enter_root(_ROOT)
    for name in _PROC_READ_ONLY:
        if os.path.exists(f"/proc/{name}"):
            attach(clone_tree(f"/proc/{name}", READ_ONLY), f"/proc/{name}")
    os.mkdir("/dev")
    mount_tmpfs("/dev", "mode=0755,size=64k")
    for name, end in _DEVICE_LINKS.items():
        os.symlink(f"/proc/self/fd{end}", f"/dev/{name}")
    for path, target in spec["symlinks"]:
        os.symlink(target, path)
    for target, is_folder, tree in trees:
        _make_place(target, is_folder)
        attach(tree, target)
    make_read_only("/dev")
    make_read_only("/")


def _take(spec: "Specification") -> "list[tuple[str, bool, int]]":
    """(where it goes, whether it is a folder, its tree) of everything, outer places first."""
    scratch = f"{STAGE}/scratch"
    wanted = [(path, path, _SYSTEM) for path in spec["system"]]
    wanted += [(f"/dev/{name}", f"/dev/{name}", _DEVICE) for name in _DEVICES]
    wanted += [(path, path, _DEVICE) for path in spec["devices"]]
    wanted += [("/tmp", f"{scratch}/tmp", _SCRATCH)]  # noqa: S108 - inside the sandbox
    wanted += [(_SHARED_MEMORY, f"{scratch}/shm", _SCRATCH)]
    own = [(path, f"{STAGE}/ro/{index}", _SYSTEM) for index, path in enumerate(spec["read_only"])]
    own.append((spec["workdir"], f"{scratch}/box", _SCRATCH))
    own.sort(key=lambda entry: entry[0].count("/"))
    return [(target, os.path.isdir(source), clone_tree(source, attributes))
            for target, source, attributes in (*wanted, *own)]  # fmt: skip


def _make_place(path: str, is_folder: bool) -> None:
    """An empty folder or file to mount on, where there is nothing yet."""
    if os.path.exists(path):
        return
    parent = os.path.dirname(path)
    _make_place(parent, is_folder=True)
    if is_folder:
        os.mkdir(path, 0o755)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444))


# --- the command --------------------------------------------------------------------------------


def become_command(spec: "Specification", failed: int) -> None:
    """The other half of a fork: becomes the command, or writes to `failed`; never returns."""
    try:
        os.setsid()
        os.chdir(spec["workdir"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        last = 2
        if spec["channel"] is not None:
            failed = fcntl.fcntl(failed, fcntl.F_DUPFD_CLOEXEC, 64)  # it may sit on that number
            last = os.dup2(spec["channel"], CHANNEL)
            os.set_inheritable(CHANNEL, True)  # if it was there already, nothing was copied
        failed = os.dup2(failed, last + 1, inheritable=False)
        os.closerange(failed + 1, MAX_DESCRIPTORS)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        set_limits(spec["rlimits"])
        try:
            os.execvpe(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606 - no shell
        except OSError as error:
            raise OSError(f"cannot run {spec['argv'][0]!r}: {error.strerror}") from None
    except BaseException as error:  # noqa: BLE001 - the forked half must never return
        os.write(2, f"launcher: {error}\n".encode(errors="replace"))
        os.write(failed, b"x")
    os._exit(_NOT_STARTED)
