"""A small program between the judge and a sandbox, in a Python process of its own.

It exists because four things must happen around a sandbox, whether bwrap makes it or `inside`,
each in a process of its own:

- what the candidate needs is mounted below /tmp in a private mount namespace first, so that uid
  65534 reaches it although it lies below a 0700 home or in a private folder (`mounts`);
- all that the candidate can write is one tmpfs with a limit on bytes and files, filled from the
  work folder before and copied back after, regular files only, when nothing runs any more
  (`mirror`);
- the control groups are joined, the user changed and the limits set between fork and exec, in a
  process without threads (`process`);
- all of it lives in a PID namespace whose first process is this program's child, so its end
  proves that the whole tree is gone, and nothing survives a judge that is killed.

Most of an evaluation's overhead is this program's start, so it imports little, and the judge sends
it ready compiled: `BOOTSTRAP` reads code and specification (`launched.Specification`) from
standard input. The result goes to the descriptor that the specification names, as lines.
"""
# ruff: noqa: SIM105 - importing contextlib would take a third of the start

import fcntl
import marshal
import os
import signal
import time

from sandbox.isolation.inside import start as start_inside
from sandbox.isolation.mirror import FOLDER, Mirror, tree_bytes
from sandbox.isolation.mounts import STAGE, mount_proc, stage, unshare_machine
from sandbox.isolation.process import (
    MAX_DESCRIPTORS,
    become,
    default_signals,
    die_with_parent,
    join_groups,
    set_limits,
)

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

_PARTS = ("mirror", "mounts", "process", "inside", "launcher")  # what is used comes first
_SECCOMP_FD, _BWRAP_STATUS_FD = 3, 4
_MARGIN_NS = 20_000_000  # files written this shortly before the start count as changed

_modules: "dict[str, tuple[str, CodeType]]" = {}


def payload(specification: "Specification", parts: "tuple[str, ...]" = _PARTS) -> bytes:
    """What `BOOTSTRAP` expects on standard input; the last of `parts` has `main`."""
    return marshal.dumps((tuple(map(_compiled, parts)), specification))


def _compiled(name: str) -> "tuple[str, CodeType]":
    """A part, compiled once per process."""
    if name not in _modules:
        _modules[name] = _compile(name)
    return _modules[name]


def _compile(name: str) -> "tuple[str, CodeType]":
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
        die_with_parent()
        if os.getppid() != specification["judge"]:
            raise RuntimeError("the judge ended before its sandbox began")
        workdir = os.open(specification["workdir"], FOLDER)
        unshare_machine(specification)
        alive, ours = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ours)
            _first_process(specification, workdir, alive)
        signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
        _leave_streams(specification)
        os.waitpid(child, 0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except Exception as error:  # noqa: BLE001 - reported whole to the judge, which raises it
        _report(status, error)


def _first_process(specification: "Specification", workdir: int, alive: int) -> None:
    """The first process of the namespace; never returns."""
    status = specification["status"]
    try:
        die_with_parent()
        os.set_blocking(alive, False)
        try:
            os.read(alive, 1)
            os._exit(1)  # end of file: whoever started us is gone
        except BlockingIOError:
            pass
        os.write(status, _run(specification, workdir).encode() + b"\n")
    except BaseException as error:  # noqa: BLE001 - reported whole to the judge, which raises it
        _report(status, error)
    os._exit(0)


def _report(status: int, error: BaseException) -> None:
    line = f"error {type(error).__name__}: {error}".replace("\n", " ")
    os.write(status, line.encode(errors="replace") + b"\n")


def _leave_streams(spec: "Specification") -> None:
    """Closes output and channel on this side: their end of file means that no candidate is left."""
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    if spec["channel"] is not None:
        os.close(spec["channel"])


def _run(spec: "Specification", workdir: int) -> str:
    room = spec["scratch_bytes"] + tree_bytes(workdir)
    owner = spec["uid"] if spec["outside_uid"] == 0 else None
    stage(spec, room, owner)
    box = os.open(f"{STAGE}/scratch/box", FOLDER)
    mirror = Mirror(owner, room)
    mirror.fill(workdir, box)
    started_ns, started = time.time_ns(), time.monotonic()
    reader, writer = os.pipe()
    child = (_start_bwrap if spec["bwrap"] else start_inside)(spec, writer, owner)
    os.close(writer)
    signal.signal(signal.SIGTERM, lambda *_: _kill(child))
    _leave_streams(spec)
    os.write(spec["status"], b"started\n")
    outcome = _wait_for_all(child)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # its number may belong to another process now
    wall_s = time.monotonic() - started
    with os.fdopen(reader, "rb") as documents:
        exit_code = _exit_code(documents.read())
    mirror.bring_back(box, workdir, started_ns - _MARGIN_NS)
    return f"done {exit_code} {outcome} {wall_s:.6f}"


def _kill(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _start_bwrap(spec: "Specification", status: int, owner: "int | None") -> int:
    """Forks bwrap with limits, user and groups as specified and an empty environment."""
    mount_proc("/proc")  # bwrap looks there for its child, by the number it has in our namespace
    filter_fd = os.memfd_create("seccomp")
    os.write(filter_fd, bytes.fromhex(spec["seccomp"]))
    os.lseek(filter_fd, 0, os.SEEK_SET)
    child = os.fork()
    if child:
        os.close(filter_fd)
        return child
    try:
        default_signals()
        join_groups(spec["procs_files"])
        become(owner)
        die_with_parent()  # after the change of user, which would clear it
        set_limits(spec["rlimits"])
        # above the fixed numbers first: either may already sit on one of them
        filter_fd, status = (fcntl.fcntl(d, fcntl.F_DUPFD_CLOEXEC, 64) for d in (filter_fd, status))
        os.dup2(filter_fd, _SECCOMP_FD)
        os.dup2(status, _BWRAP_STATUS_FD)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.closerange(_BWRAP_STATUS_FD + 1, MAX_DESCRIPTORS)
        os.execve(spec["bwrap"][0], spec["bwrap"], {})  # noqa: S606 - a shell is not wanted
    except BaseException as error:  # noqa: BLE001 - the forked half must never return
        os.write(2, f"launcher: {error}\n".encode())
    os._exit(127)


def _wait_for_all(child: int) -> int:
    """Waits for a sandbox and for all that was left to us; returns how its first process ended.

    What outlives that process can only wait for it: a bwrap that fails early leaves its child so.
    """
    outcome = 0
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            return outcome
        if pid == child:
            outcome = os.waitstatus_to_exitcode(status)
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                pass


def _exit_code(documents: bytes) -> int:
    """The command's code as the sandbox tells it in JSON; -1 if it never got as far as running."""
    _, found, rest = documents.partition(b'"exit-code":')
    digits = rest.lstrip().split(b" ")[0].split(b"}")[0].split(b",")[0].strip()
    return int(digits) if found and digits.isdigit() else -1
