"""The bubblewrap back end: namespaces, a system call filter, control groups, one bounded scratch.

The judge talks to `launcher.py`, which prepares mounts and limits around bwrap; see there for why.
"""

import contextlib
import os
import re
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pk_runtime.execution import (
    Command,
    Completed,
    Exceeded,
    ExecutionError,
    resident_bytes,
)
from sandbox.isolation import cgroup, launcher, seccomp
from sandbox.isolation.base import Capabilities, IsolationUnavailable, SandboxFault

INSIDE_UID = 65534
_TMP = "/tmp"  # noqa: S108 - inside the sandbox; also where the launcher stages what is mounted
_SHM = "/dev/shm"  # noqa: S108 - inside the sandbox
_SCRATCH_FILES = 65536
_OPEN_FILES = 1024
_SETUP_S = 30.0
_FINISH_S = 60.0
_TICK_S = 0.05
_READ_BYTES = 1 << 16
_SIGNAL_BASE = 128  # how bwrap, like a shell, tells that a signal ended the command
_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_SYSTEM_FILES = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")
_BASE_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": _TMP, "TMPDIR": _TMP,
             "LANG": "C.UTF-8", "USER": "sandbox", "LOGNAME": "sandbox"}  # fmt: skip


class BubblewrapExecutor:
    """Runs each command in a fresh sandbox; thread-safe. Nothing survives `run`.

    Inside: no network but its own loopback, no environment but the command's, the paths of the
    command at their own places, a read-only root, and one scratch for the work folder, /tmp and
    /dev/shm whose size is `limits.file_bytes` plus what the work folder held. Afterwards the work
    folder holds the regular files that the command left there, and nothing else.
    """

    name = "bubblewrap"

    def __init__(self) -> None:
        """Raises IsolationUnavailable if bwrap or the system call filter cannot be had."""
        program = shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin")
        if program is None:
            raise IsolationUnavailable(
                "bubblewrap is not installed", "Install it: apt-get install bubblewrap."
            )
        try:
            self._filter = seccomp.program()
        except seccomp.UnsupportedArchitecture as error:
            raise IsolationUnavailable(str(error), "Judge on an x86-64 machine.") from error
        self._program = program
        self._version = _version(program)
        self._no_userns = self._version >= (0, 8)
        self._controllers = cgroup.detect()
        self._uid, self._gid = os.getuid(), os.getgid()

    def capabilities(self) -> Capabilities:
        """What is enforced here; limits without a control group are marked as weaker."""
        memory, pids = self._controllers.get("memory"), self._controllers.get("pids")
        return Capabilities(
            backend=f"bubblewrap {'.'.join(map(str, self._version))}",
            isolated=True,
            network="own namespace with a loopback only",
            filesystem="read-only root, named paths only",
            environment="empty but for the command's own",
            user=f"uid {INSIDE_UID}" + ("" if self._uid == 0 else ", which outside is the judge's"),
            processes=pids.describe() if pids else "RLIMIT_NPROC",
            memory=memory.describe() if memory else "RLIMIT_AS of each process, their sum watched",
            disk=f"one tmpfs with a size limit and {_SCRATCH_FILES} files",
            seccomp=f"deny list, {len(self._filter) // 8} instructions",
            nested_namespaces="disabled" if self._no_userns else "refused by the filter",
        )

    def run(self, command: Command) -> Completed:
        """Runs a command to its end or its limits; SandboxFault when the sandbox itself fails."""
        for path in (command.workdir, *command.read_only):
            if not path.is_absolute() or not path.exists():
                raise ExecutionError(f"{path}: the sandbox needs an existing absolute path")
        limits = {}
        if controller := self._controllers.get("memory"):
            limits[controller] = command.limits.memory_bytes
        if controller := self._controllers.get("pids"):
            limits[controller] = command.limits.processes
        try:
            group = cgroup.Group(limits)
        except OSError as error:
            raise SandboxFault(f"cannot make a control group: {error}") from error
        try:
            specification = self._specification(command, group)
            return _Watch(command, specification, group).to_end()
        finally:
            group.remove()

    def _specification(self, command: Command, group: cgroup.Group) -> dict[str, Any]:
        return {
            "judge": os.getpid(),
            "outside_uid": self._uid,
            "outside_gid": self._gid,
            "uid": INSIDE_UID,
            "workdir": str(command.workdir),
            "read_only": [str(path) for path in command.read_only],
            "scratch_bytes": command.limits.file_bytes,
            "scratch_files": _SCRATCH_FILES,
            "procs_files": [str(path) for path in group.procs_files],
            "rlimits": self._rlimits(command),
            "seccomp": self._filter.hex(),
            "argv": [self._program, *self._arguments(command), "--", *command.argv],
        }

    def _rlimits(self, command: Command) -> list[tuple[int, int]]:
        limits = command.limits
        values = [
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_FSIZE, limits.file_bytes),
            (resource.RLIMIT_NOFILE, _OPEN_FILES),
            (resource.RLIMIT_MSGQUEUE, 0),
        ]
        if "pids" not in self._controllers:
            values.append((resource.RLIMIT_NPROC, limits.processes))
        if "memory" not in self._controllers:
            values.append((resource.RLIMIT_AS, limits.memory_bytes))
        return values

    def _arguments(self, command: Command) -> list[str]:
        """The options of bwrap. Numbers 3 and 4 are the descriptors that the launcher sets up."""
        arguments = ["--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
        arguments += ["--disable-userns"] if self._no_userns else []
        arguments += ["--uid", str(INSIDE_UID), "--gid", str(INSIDE_UID), "--cap-drop", "ALL"]
        arguments += ["--hostname", "sandbox", "--seccomp", "3", "--json-status-fd", "4"]
        arguments += [*_system_mounts(), "--proc", "/proc", "--dev", "/dev"]
        scratch = Path(_TMP, "scratch")
        arguments += ["--bind", str(scratch / "tmp"), _TMP, "--bind", str(scratch / "shm"), _SHM]
        binds = [(path, f"{_TMP}/ro/{index}", "--ro-bind")
                 for index, path in enumerate(command.read_only)]  # fmt: skip
        binds.append((command.workdir, str(scratch / "box"), "--bind"))
        for path, source, option in sorted(binds, key=lambda bind: len(bind[0].parts)):
            arguments += [option, source, str(path)]
        arguments += ["--chdir", str(command.workdir), "--clearenv"]
        for name, value in {**_BASE_ENV, **command.env}.items():
            arguments += ["--setenv", name, value]
        return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/"]


def _system_mounts() -> list[str]:
    mounts: list[str] = []
    for name in _SYSTEM_FOLDERS:
        path = Path(name)
        if path.is_symlink():
            mounts += ["--symlink", os.readlink(path), name]
        elif path.is_dir():
            mounts += ["--ro-bind", name, name]
    for name in _SYSTEM_FILES:
        mounts += ["--ro-bind-try", name, name]
    return mounts


def _version(program: str) -> tuple[int, ...]:
    try:
        text = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=10, check=True, env={}
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise IsolationUnavailable(
            f"{program} does not run: {error}", "Reinstall it: apt-get install bubblewrap."
        ) from error
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


@dataclass
class _Watch:
    """One run as the judge sees it: output, deadlines, and the launcher's report."""

    command: Command
    specification: dict[str, Any]
    group: cgroup.Group
    output: dict[str, bytearray] = field(
        default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()}
    )
    status: bytearray = field(default_factory=bytearray)
    exceeded: Exceeded | None = None

    def to_end(self) -> Completed:
        reader, writer = os.pipe()
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, reader)
            try:
                process = self._launch(writer)
            finally:
                os.close(writer)
            stack.enter_context(process)
            stack.callback(process.kill)
            self._collect(process, reader)
        return self._completed()

    def _launch(self, status: int) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-I", "-S", "-c", launcher.BOOTSTRAP]
        try:
            process = subprocess.Popen(
                argv,
                env={},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(status,),
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxFault(f"cannot start the sandbox launcher: {error}") from error
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(launcher.payload({**self.specification, "status": status}))
        return process

    def _collect(self, process: subprocess.Popen[bytes], status: int) -> None:
        """Reads until the launcher and everything below it has closed its ends."""
        deadline = time.monotonic() + _SETUP_S
        running = stopped = False
        with selectors.DefaultSelector() as selector:
            for name, stream in (("stdout", process.stdout), ("stderr", process.stderr)):
                assert stream is not None
                selector.register(stream, selectors.EVENT_READ, name)
            selector.register(status, selectors.EVENT_READ, "status")
            while selector.get_map():
                for key, _ in selector.select(_TICK_S):
                    self._read(selector, key)
                now = time.monotonic()
                if not running and b"\n" in self.status:
                    running, deadline = True, now + self.command.limits.wall_s
                if running and not stopped and self.exceeded is None:
                    self.exceeded = self._limit_reached(process.pid, now > deadline)
                if not stopped and self.exceeded is not None:
                    stopped, deadline = True, now + _FINISH_S
                    process.send_signal(signal.SIGTERM)
                if now > deadline and (stopped or not running):
                    raise SandboxFault("the sandbox launcher did not answer in time")

    def _limit_reached(self, launcher: int, late: bool) -> Exceeded | None:
        if self.status.count(b"\n") > 1:  # it ended; what takes time now is our own copying
            return None
        if late:
            return "wall"
        if self.group.limits_memory or resident_bytes(launcher) < self.command.limits.memory_bytes:
            return None
        return "memory"

    def _read(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        chunk = os.read(key.fd, _READ_BYTES)
        if not chunk:
            selector.unregister(key.fileobj)
        elif key.data == "status":
            self.status += chunk
        else:
            room = self.command.limits.output_bytes - sum(map(len, self.output.values()))
            self.output[key.data] += chunk[:room]
            if len(chunk) > room and self.exceeded is None:
                self.exceeded = "output"

    def _completed(self) -> Completed:
        lines = bytes(self.status).decode(errors="replace").splitlines()
        kind, _, report = (lines[-1] if lines else "").partition(" ")
        if kind != "done":
            reason = report if kind == "error" else "its launcher was killed"
            raise SandboxFault(f"the sandbox failed: {reason}")
        told, bwrap, wall_s = report.split()
        exceeded: Exceeded | None = "memory" if self.group.out_of_memory() else self.exceeded
        code: int | None = int(told)
        number: int | None = None
        if code is None or code < 0:
            if exceeded is None and int(bwrap) >= 0:
                stderr = bytes(self.output["stderr"]).decode(errors="replace")
                raise SandboxFault(f"the sandbox did not start: {stderr.strip()[-500:]}")
            code, number = None, signal.SIGKILL
        elif code > _SIGNAL_BASE:
            number = code - _SIGNAL_BASE
            code = None
        return Completed(
            exit_code=code,
            signal=number,
            exceeded=exceeded,
            stdout=bytes(self.output["stdout"]),
            stderr=bytes(self.output["stderr"]),
            wall_s=float(wall_s),
        )
