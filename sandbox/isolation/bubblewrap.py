"""The bubblewrap back end: namespaces, a system call filter, control groups, one bounded scratch.

The judge talks to `launcher.py`, which prepares mounts and limits around bwrap; see there for why.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from pk_runtime.execution import Command
from sandbox.isolation import cgroup
from sandbox.isolation.base import Capabilities, IsolationUnavailable
from sandbox.isolation.launched import BASE_ENV, INSIDE_UID, TMP, LaunchedExecutor, system_view

_SHM = "/dev/shm"  # noqa: S108 - inside the sandbox


class BubblewrapExecutor(LaunchedExecutor):
    """Runs each command in a fresh sandbox that bwrap makes."""

    name = "bubblewrap"

    def __init__(self) -> None:
        """Raises IsolationUnavailable if bwrap or the system call filter cannot be had."""
        program = shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin")
        if program is None:
            raise IsolationUnavailable(
                "bubblewrap is not installed", "Install it: apt-get install bubblewrap."
            )
        super().__init__()
        self._program = program
        self._version = _version(program)
        self._no_userns = self._version >= (0, 8)

    def capabilities(self) -> Capabilities:
        """What is enforced here; limits without a control group are marked as weaker."""
        nested = "disabled" if self._no_userns else "refused by the filter"
        return self._report(f"bubblewrap {'.'.join(map(str, self._version))}", nested)

    def _specification(self, command: Command, group: cgroup.Group) -> dict[str, Any]:
        arguments = [*self._arguments(command), "--", *command.argv]
        return {**super()._specification(command, group), "bwrap": [self._program, *arguments]}

    def _arguments(self, command: Command) -> list[str]:
        """The options of bwrap. Numbers 3 and 4 are the descriptors that the launcher sets up."""
        arguments = ["--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
        arguments += ["--disable-userns"] if self._no_userns else []
        arguments += ["--uid", str(INSIDE_UID), "--gid", str(INSIDE_UID), "--cap-drop", "ALL"]
        arguments += ["--hostname", "sandbox", "--seccomp", "3", "--json-status-fd", "4"]
        links, system = system_view()
        for path, target in links:
            arguments += ["--symlink", target, path]
        for path in system:
            arguments += ["--ro-bind", path, path]
        arguments += ["--proc", "/proc", "--dev", "/dev"]
        # The first process is bwrap: same user, and without the filter. Whoever could write to its
        # memory would be rid of the filter, so nothing of it can be reached by a path.
        arguments += ["--size", "4096", "--tmpfs", "/proc/1", "--remount-ro", "/proc/1"]
        scratch = Path(TMP, "scratch")
        arguments += ["--bind", str(scratch / "tmp"), TMP, "--bind", str(scratch / "shm"), _SHM]
        binds = [(path, f"{TMP}/ro/{index}", "--ro-bind")
                 for index, path in enumerate(command.read_only)]  # fmt: skip
        binds.append((command.workdir, str(scratch / "box"), "--bind"))
        for place, source, option in sorted(binds, key=lambda bind: len(bind[0].parts)):
            arguments += [option, source, str(place)]
        arguments += ["--chdir", str(command.workdir), "--clearenv"]
        for name, value in {**BASE_ENV, **command.env}.items():
            arguments += ["--setenv", name, value]
        return [*arguments, "--remount-ro", "/dev", "--remount-ro", "/"]


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
