"""What the back ends share that work through the launcher: control groups, limits, the view."""

import math
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pk_runtime.execution import Command, Completed, ExecutionError, Limits
from sandbox.isolation import cgroup, seccomp
from sandbox.isolation.base import Capabilities, IsolationUnavailable, SandboxFault
from sandbox.isolation.watch import Watch

INSIDE_UID = 65534
TMP = "/tmp"  # noqa: S108 - inside the sandbox; also where the launcher stages what is mounted
BASE_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": TMP, "TMPDIR": TMP,
            "LANG": "C.UTF-8", "USER": "sandbox", "LOGNAME": "sandbox"}  # fmt: skip

SCRATCH_FILES = 65536
OPEN_FILES = 1024

_OPEN_FILES_OF_DRIVER = 16384  # libcuda opens its nodes again for many of its mappings
_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_SYSTEM_FILES = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")


class LaunchedExecutor:
    """Runs each command in a fresh sandbox; thread-safe. Nothing survives `run`.

    Inside: no network but its own loopback, no environment but the command's, the paths of the
    command at their own places, a read-only root, and one scratch for the work folder, /tmp and
    /dev/shm whose size is `limits.file_bytes` plus what the work folder held. Afterwards the work
    folder holds the regular files that the command left there, and nothing else.
    """

    name = "launched"

    def __init__(self) -> None:
        """Raises IsolationUnavailable if the system call filter cannot be had."""
        try:
            self._filter = seccomp.program()
        except seccomp.UnsupportedArchitecture as error:
            raise IsolationUnavailable(str(error), "Judge on an x86-64 machine.") from error
        self._controllers = cgroup.detect()
        self._uid, self._gid = os.getuid(), os.getgid()

    def run(self, command: Command) -> Completed:
        """Runs a command to its end or its limits; SandboxFault when the sandbox itself fails."""
        check_paths(command)
        group = self._group(command)
        try:
            return Watch(command, self._specification(command, group), group).to_end()
        finally:
            group.remove()

    def _report(self, backend: str, nested_namespaces: str) -> Capabilities:
        """What is enforced here; limits without a control group are marked as weaker."""
        memory, pids = self._controllers.get("memory"), self._controllers.get("pids")
        return Capabilities(
            backend=backend,
            isolated=True,
            network="own namespace with a loopback only",
            filesystem="read-only root, named paths only",
            environment="empty but for the command's own",
            user=f"uid {INSIDE_UID}" + ("" if self._uid == 0 else ", which outside is the judge's"),
            processes=pids.describe() if pids else "RLIMIT_NPROC",
            memory=memory.describe() if memory else "RLIMIT_AS of each process, their sum watched",
            disk=f"one tmpfs with a size limit and {SCRATCH_FILES} files",
            seccomp=f"deny list, {len(self._filter) // 8} instructions",
            nested_namespaces=nested_namespaces,
        )

    def _group(self, command: Command) -> cgroup.Group:
        limits = {}
        if controller := self._controllers.get("memory"):
            limits[controller] = command.limits.memory_bytes
        if controller := self._controllers.get("pids"):
            limits[controller] = command.limits.processes
        try:
            return cgroup.Group(limits)
        except OSError as error:
            raise SandboxFault(f"cannot make a control group: {error}") from error

    def _specification(self, command: Command, group: cgroup.Group) -> dict[str, Any]:
        """What the launcher needs to know, as plain data; a back end adds its own part."""
        return {
            "judge": os.getpid(),
            "outside_uid": self._uid,
            "outside_gid": self._gid,
            "uid": INSIDE_UID,
            "workdir": str(command.workdir),
            "read_only": [str(path) for path in command.read_only],
            "scratch_bytes": command.limits.file_bytes,
            "scratch_files": SCRATCH_FILES,
            "procs_files": [str(path) for path in group.procs_files],
            "rlimits": self._rlimits(command),
            "seccomp": self._filter.hex(),
            "channel": None,
            "bwrap": None,
        }

    def _rlimits(self, command: Command, *, driver: bool = False) -> list[tuple[int, int]]:
        """Resource limits; those that a driver's library would run into are not, or hardly, set."""
        limits = command.limits
        values = rlimits(limits, _OPEN_FILES_OF_DRIVER if driver else OPEN_FILES)
        if "pids" not in self._controllers:
            values.append((resource.RLIMIT_NPROC, limits.processes))
        if "memory" not in self._controllers and not driver:
            values.append((resource.RLIMIT_AS, limits.memory_bytes))
        return values


def rlimits(limits: Limits, open_files: int = OPEN_FILES) -> list[tuple[int, int]]:
    """The resource limits of each process that every sandbox sets."""
    values = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, open_files),
        (resource.RLIMIT_MSGQUEUE, 0),
    ]
    if limits.cpu_s is not None:
        values.append((resource.RLIMIT_CPU, math.ceil(limits.cpu_s)))
    return values


def check_paths(command: Command, devices: Sequence[Path] = ()) -> None:
    """ExecutionError for a path that a sandbox could not bind."""
    for path in (command.workdir, *command.read_only, *devices):
        if not path.is_absolute() or not path.exists():
            raise ExecutionError(f"{path}: the sandbox needs an existing absolute path")


def system_view() -> tuple[list[tuple[str, str]], list[str]]:
    """What every sandbox sees of the system: links (path, target), and paths to bind read-only."""
    folders = [Path(name) for name in _SYSTEM_FOLDERS]
    links = [(str(path), os.readlink(path)) for path in folders if path.is_symlink()]
    bound = [str(path) for path in folders if path.is_dir() and not path.is_symlink()]
    return links, [*bound, *(name for name in _SYSTEM_FILES if Path(name).exists())]
