"""A Docker engine as its command line shows it: what it can do, our image, our containers.

The image holds nothing but folders and links: what a command sees of the system comes from the
host, read-only, as in the other back ends. So it needs no registry and is never out of date.
"""

import contextlib
import hashlib
import io
import json
import os
import secrets
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from sandbox.isolation.base import IsolationUnavailable, SandboxFault
from sandbox.isolation.launched import system_view

DEFAULT_HOST = "unix:///var/run/docker.sock"

_PREFIX = "pkforge"
_JUDGE, _MACHINE, _SKELETON = f"{_PREFIX}.judge", f"{_PREFIX}.machine", f"{_PREFIX}.skeleton"
_PROGRAM_PATH = "/usr/local/bin:/usr/bin:/bin"
_CALL_S = 60.0
_LOOK_S = 10.0
# No file of a user's configuration, which could put variables into containers.
_CONFIG = "/nonexistent"
_INSTALL = (
    "Install one and start it: apt-get install docker.io; or name its socket: PKFORGE_DOCKER_HOST"
)
_FOLDERS = ("dev", "etc", "proc", "sys", "tmp")


class Engine:
    """One engine, by its address or, without one, the machine's own; thread-safe."""

    def __init__(self, host: str = "") -> None:
        """Raises IsolationUnavailable without a docker command or an engine that answers."""
        program = shutil.which("docker", path=_PROGRAM_PATH)
        if program is None:
            raise IsolationUnavailable("there is no docker command", f"{_INSTALL}.")
        self.host = host or DEFAULT_HOST
        self._command = (program, "--host", self.host, "--config", _CONFIG)
        self.info = self._look()

    def argv(self, *arguments: str) -> list[str]:
        """The command line of one call."""
        return [*self._command, *arguments]

    def call(self, *arguments: str, data: bytes | None = None, timeout_s: float = _CALL_S) -> str:
        """Standard output of one call; SandboxFault if it fails or takes too long."""
        try:
            done = subprocess.run(
                self.argv(*arguments), env={}, capture_output=True, check=True, timeout=timeout_s,
                input=data or b"",
            )  # fmt: skip
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip()
            raise SandboxFault(f"docker {arguments[0]} failed: {said[-500:]}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SandboxFault(f"docker {arguments[0]} failed: {error}") from error
        return bytes(done.stdout).decode(errors="replace").strip()

    def runtimes(self) -> set[str]:
        """The runtimes that containers can be started with, e.g. "runc" and "runsc"."""
        return set(self.info.get("Runtimes") or ())

    def image(self) -> str:
        """The name of the image, which is made if it is not there.

        Raises IsolationUnavailable if somebody else's image has that name.
        """
        content = _skeleton()
        digest = hashlib.sha256(content).hexdigest()
        name = f"{_PREFIX}-sandbox:{digest[:12]}"
        look = ("image", "inspect", "--format", f'{{{{index .Config.Labels "{_SKELETON}"}}}}', name)
        try:
            found = self.call(*look)
        except SandboxFault:
            self.call("import", "--change", f"LABEL {_SKELETON}={digest}", "-", name, data=content)
            found = self.call(*look)
        if found != digest:
            raise IsolationUnavailable(
                f"the image {name} is not pkforge's", f"Remove it: docker image rm {name}."
            )
        return name

    def new_name(self) -> str:
        """A name for a container that nobody else has."""
        return f"{_PREFIX}-{os.getpid()}-{secrets.token_hex(8)}"

    def labels(self) -> list[str]:
        """The options that mark a container as this process's."""
        return ["--label", f"{_JUDGE}={_identity(os.getpid())}",
                "--label", f"{_MACHINE}={_machine()}"]  # fmt: skip

    def remove(self, name: str) -> None:
        """Kills and removes a container; SandboxFault if it may still be there."""
        with contextlib.suppress(SandboxFault):
            self.call("rm", "--force", name)
            return
        if name in self.call("ps", "--all", "--format", "{{.Names}}").split():
            raise SandboxFault(f"the container {name} cannot be removed: docker rm --force {name}")

    def sweep(self) -> None:
        """Removes the containers of judges of this machine that are dead."""
        listed = self.call(
            "ps", "--all", "--filter", f"label={_MACHINE}={_machine()}",
            "--format", f'{{{{.Names}}}} {{{{.Label "{_JUDGE}"}}}}',
        )  # fmt: skip
        for line in listed.splitlines():
            name, _, judge = line.partition(" ")
            if _identity(int(judge.partition(".")[0])) != judge:
                with contextlib.suppress(SandboxFault):  # another judge may sweep as well
                    self.remove(name)

    def ran_out_of_memory(self, name: str) -> bool:
        """Whether the kernel killed something in a container for want of memory."""
        return self.call("inspect", "--format", "{{.State.OOMKilled}}", name) == "true"

    def _look(self) -> dict[str, Any]:
        try:
            info = json.loads(self.call("info", "--format", "{{json .}}", timeout_s=_LOOK_S))
        except (SandboxFault, ValueError) as error:
            raise IsolationUnavailable(
                f"no Docker engine at {self.host}", f"{_INSTALL}."
            ) from error
        if not isinstance(info, dict) or not info.get("ServerVersion"):
            raise IsolationUnavailable(f"no Docker engine at {self.host}", f"{_INSTALL}.")
        return info


def _identity(pid: int) -> str | None:
    """A process as its number and its start, so that a later one is not taken for it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return f"{pid}.{fields[19]}"


def _machine() -> str:
    """This boot and this PID namespace: elsewhere the number of a judge means nothing."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"{boot}-{namespace}"


def _skeleton() -> bytes:
    """The image as a tar archive: places for what is mounted, and the system's links."""
    links, bound = system_view()
    folders = {*_FOLDERS, *(path.strip("/") for path in bound if path.count("/") == 1)}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in sorted(folders):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for path, target in links:
            entry = tarfile.TarInfo(path.strip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return content.getvalue()
