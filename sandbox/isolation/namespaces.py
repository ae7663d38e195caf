"""The back end that needs no program: Python makes the namespaces itself, on Linux 5.12 and newer.

The judge talks to `launcher.py` as with bubblewrap; what bwrap does there, `inside.py` does here.
Besides single commands it runs sessions: processes that the judge talks to over a socket and that
may use devices, one for each rank of a GPU run.
"""

import platform
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pk_runtime.execution import Command, ExecutionError
from sandbox.isolation import cgroup, gpu
from sandbox.isolation.base import Capabilities
from sandbox.isolation.launched import BASE_ENV, LaunchedExecutor, check_paths, system_view
from sandbox.isolation.session import Session
from sandbox.isolation.watch import Watch


class NamespaceExecutor(LaunchedExecutor):
    """Runs each command in a fresh sandbox that the launcher makes by itself."""

    name = "namespaces"

    def capabilities(self) -> Capabilities:
        """What is enforced here; limits without a control group are marked as weaker."""
        nested = "refused by the filter" if self._uid == 0 else "disabled, refused by the filter"
        return self._report(f"namespaces of Linux {platform.release()}", nested)

    def start(
        self, command: Command, *, channel: socket.socket, devices: Sequence[Path] = ()
    ) -> Session:
        """Starts a command and returns at once; `Session` says how it goes on.

        `channel` is one end of a Unix socket pair. It is handed over: the command finds it as
        descriptor 3 and nobody else keeps it, so the other end reads end-of-file when the sandbox
        has ended. It is closed here, whatever happens.

        `devices` are device nodes that the command may use, at their own places (for GPUs:
        `gpu.gpu_devices`). With any of them, the driver's libraries and the parts of /sys that it
        reads can be read too, LD_LIBRARY_PATH leads to the libraries unless `command.env` says
        otherwise, and memory is limited by the control group, else by resident size: drivers
        reserve far more address space than they use.

        ExecutionError for a bad path or channel; a sandbox that fails shows in the session.
        """
        with channel:
            if channel.family != socket.AF_UNIX:
                raise ExecutionError("the channel of a session must be a Unix socket")
            check_paths(command, devices)
            if devices:
                command = _with_driver(command)
            group = self._group(command)
            specification = self._specification(command, group) | {
                "devices": [str(path) for path in devices],
                "rlimits": self._rlimits(command, driver=bool(devices)),
                "channel": channel.detach(),
            }
            if devices:
                specification["system"] += gpu.system_paths()
            return Session(Watch(command, specification, group), group.remove)

    def _specification(self, command: Command, group: cgroup.Group) -> dict[str, Any]:
        links, system = system_view()
        return {
            **super()._specification(command, group),
            "argv": list(command.argv),
            "env": {**BASE_ENV, **command.env},
            "symlinks": links,
            "system": system,
            "devices": [],
        }


def _with_driver(command: Command) -> Command:
    missing = [path for path in gpu.gpu_paths() if path not in command.read_only]
    return Command(
        command.argv,
        command.workdir,
        (*command.read_only, *missing),
        {**gpu.gpu_environment(), **command.env},
        command.limits,
    )
