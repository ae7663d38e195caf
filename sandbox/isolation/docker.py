"""The Docker back end: one container for each command, and no `docker exec` ever.

The container's first process is `container.py`, which keeps the limits that Docker has not and ends
everything when the judge ends; `exchange.py` is what goes in and out. Docker's own init is left
out for it. A container is removed before `run` returns; one whose judge was killed ends by itself
and is removed by the next judge.
"""

import contextlib
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pk_runtime.execution import Command, Completed
from sandbox.isolation import seccomp
from sandbox.isolation.base import Capabilities, IsolationUnavailable, SandboxFault
from sandbox.isolation.conversation import Conversation
from sandbox.isolation.engine import Engine
from sandbox.isolation.launched import (
    BASE_ENV,
    INSIDE_UID,
    OPEN_FILES,
    SCRATCH_FILES,
    TMP,
    check_paths,
    rlimits,
    system_view,
)
from sandbox.isolation.launcher import BOOTSTRAP, payload
from sandbox.isolation.mirror import FOLDER, tree_bytes

_PARTS = ("mirror", "mounts", "process", "inside", "container")
_SHM = "/dev/shm"  # noqa: S108 - inside the sandbox
_OTHER_SCRATCH = 4  # /tmp and /dev/shm may each hold this part of what the work folder may
_LEAST_OTHER_BYTES = 1 << 20
_OWN_MEMORY = 24 << 20  # the container's first process
_OWN_PROCESSES = 1
_NO_NAME_SERVER = (
    "192.0.2.1"  # instead of the host's own in /etc/resolv.conf; reserved for examples
)


class DockerExecutor:
    """Runs each command in a fresh container; thread-safe. Nothing survives `run`.

    Inside: what `LaunchedExecutor` promises. The work folder, /tmp and /dev/shm are three file
    systems with a limit each: the first holds `limits.file_bytes` and what the work folder held,
    the others a quarter of it.
    """

    name = "docker"

    def __init__(self, host: str = "", runtime: str = "runc") -> None:
        """Raises IsolationUnavailable without an engine with that runtime at `host`."""
        try:
            self._profile = seccomp.docker_profile()
        except seccomp.UnsupportedArchitecture as error:
            raise IsolationUnavailable(str(error), "Judge on an x86-64 machine.") from error
        self.engine = Engine(host)
        if runtime not in self.engine.runtimes():
            raise IsolationUnavailable(
                f"this Docker engine has no runtime {runtime}",
                "Install it and name it in the engine's daemon.json.",
            )
        self._runtime = runtime
        try:
            self._image = self.engine.image()
            self.engine.sweep()
        except SandboxFault as error:
            raise IsolationUnavailable(str(error), "Correct what docker says.") from error

    def capabilities(self) -> Capabilities:
        """What the engine says that it can enforce; the mini-suite shows whether it does."""
        info = self.engine.info
        group = f"control group version {info.get('CgroupVersion', '1')}"
        security = " ".join(info.get("SecurityOptions") or ())
        return Capabilities(
            backend=f"docker {info['ServerVersion']}, {self._runtime}",
            isolated=True,
            network="own namespace with a loopback only",
            filesystem="read-only root, named paths only",
            environment="empty but for the command's own",
            user=f"uid {INSIDE_UID}",
            processes=f"{group}, pids" if info.get("PidsLimit") else "not enforced",
            memory=f"{group}, memory" if info.get("MemoryLimit") else "not enforced",
            disk=f"a tmpfs each for work folder, /tmp and {_SHM}, with limits on size and files",
            seccomp="deny list, as Docker's profile" if "seccomp" in security else "not enforced",
            nested_namespaces="refused by the filter",
        )

    def run(self, command: Command) -> Completed:
        """Runs a command to its end or its limits; SandboxFault when the sandbox itself fails."""
        check_paths(command)
        workdir = os.open(command.workdir, FOLDER)
        try:
            room = command.limits.file_bytes + tree_bytes(workdir)
        finally:
            os.close(workdir)
        name = self.engine.new_name()
        with self._profile_file() as profile, _readable(command.read_only) as binds:
            options = self._options(command, name, room, profile, binds)
            argv = self.engine.argv(*options, self._image, *_interpreter(), BOOTSTRAP)
            try:
                return Conversation(command, argv, (profile,), room).to_end(
                    payload(self._specification(command, room), _PARTS),
                    lambda: self.engine.ran_out_of_memory(name),
                )
            finally:
                self.engine.remove(name)

    @contextlib.contextmanager
    def _profile_file(self) -> Iterator[int]:
        """The filter as a file without a name; its descriptor, for the docker command to read."""
        descriptor = os.memfd_create("seccomp")
        try:
            os.write(descriptor, self._profile.encode())
            yield descriptor
        finally:
            os.close(descriptor)

    def _options(
        self, command: Command, name: str, room: int, profile: int, binds: list[tuple[Path, Path]]
    ) -> list[str]:
        limits = command.limits
        memory = str(limits.memory_bytes + _OWN_MEMORY)
        options = ["run", "--interactive", "--name", name, *self.engine.labels()]
        options += ["--runtime", self._runtime, "--pull", "never", "--log-driver", "none"]
        options += ["--network", "none", "--dns", _NO_NAME_SERVER, "--hostname", "sandbox"]
        options += ["--ipc", "private", "--read-only", "--user", f"{INSIDE_UID}:{INSIDE_UID}"]
        options += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        options += ["--security-opt", f"seccomp=/proc/self/fd/{profile}"]
        options += ["--memory", memory, "--memory-swap", memory, "--cpus", str(os.cpu_count() or 1)]
        options += ["--pids-limit", str(limits.processes + _OWN_PROCESSES)]
        options += ["--ulimit", "core=0", "--ulimit", f"nofile={OPEN_FILES}", "--stop-timeout", "1"]
        options += ["--tmpfs", "/sys:ro,mode=0111,size=4k"]
        other = max(room // _OTHER_SCRATCH, _LEAST_OTHER_BYTES)
        for folder, size in ((str(command.workdir), room), (TMP, other), (_SHM, other)):
            options += ["--tmpfs", _scratch(folder, size)]
        for source, place in binds:
            options += ["--mount", _bind(source, place)]
        return options

    def _specification(self, command: Command, room: int) -> dict[str, Any]:
        limits = rlimits(command.limits)
        return {
            "argv": list(command.argv),
            "env": {**BASE_ENV, **command.env},
            "workdir": str(command.workdir),
            "rlimits": limits,
            "wall_s": command.limits.wall_s,
            "output_bytes": command.limits.output_bytes,
            "room": room,
            "channel": None,
        }


def _scratch(place: str, size: int) -> str:
    if ":" in place:
        raise SandboxFault(f"{place}: docker cannot use a work folder with a colon in its path")
    owner = f"uid={INSIDE_UID},gid={INSIDE_UID},mode=0700"
    return f"{place}:rw,nosuid,nodev,exec,size={size},nr_inodes={SCRATCH_FILES},{owner}"


def _bind(source: Path, place: Path) -> str:
    """The value of --mount, which is read as a line of comma-separated values."""
    fields = ("type=bind", f"source={source}", f"target={place}", "readonly")
    return ",".join('"' + field.replace('"', '""') + '"' for field in fields)


def _interpreter() -> tuple[str, ...]:
    """Python without any package, for the container's first process."""
    return (os.path.realpath(sys.executable), "-I", "-S", "-c")


@contextlib.contextmanager
def _readable(paths: tuple[Path, ...]) -> Iterator[list[tuple[Path, Path]]]:
    """(source, place) of everything to bind: the system, the interpreter, and `paths`.

    What only its owner may read is bound as a copy, which others may.
    """
    _, system = system_view()
    binds = [(Path(path), Path(path)) for path in system]
    base = Path(sys.base_prefix)
    if not base.is_relative_to("/usr"):
        binds.append((base, base))
    with contextlib.ExitStack() as stack:
        for path in sorted(set(paths), key=lambda path: len(path.parts)):
            found = path.stat()
            needed = 0o5 if stat.S_ISDIR(found.st_mode) else 0o4
            source = path
            if found.st_mode & needed != needed:
                source = stack.enter_context(_copied(path))
            if (path, path) not in binds:
                binds.append((source.resolve(), path))
        yield binds


@contextlib.contextmanager
def _copied(path: Path) -> Iterator[Path]:
    """A copy that others may read, in a folder that they may not enter but that can be bound."""
    with tempfile.TemporaryDirectory(prefix=f"pkforge-lent-{os.getpid()}-") as folder:
        copy = Path(folder) / secrets.token_hex(4)
        if path.is_dir():
            shutil.copytree(path, copy, symlinks=True)
        else:
            shutil.copyfile(path, copy)
        for each in (copy, *copy.rglob("*")):
            if not each.is_symlink():
                each.chmod(each.stat().st_mode | (0o755 if each.is_dir() else 0o444))
        yield copy
