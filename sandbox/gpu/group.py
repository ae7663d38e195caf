"""The runners of one candidate: one sandboxed process per rank, commanded as a group.

A rank that fails, dies or is late ends the whole group within the command's deadline; what each of
them said is in `GroupEnded`.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import pk_runtime
import sandbox
from pk_runtime.execution import Command, Completed, ExecutionError, Limits
from pk_runtime.gpu.channel import Channel
from sandbox.gpu.failures import Outcome, clean
from sandbox.gpu.serve import Answer, ask_all
from sandbox.isolation import NamespaceExecutor, Session
from sandbox.isolation.gpu import gpu_devices, gpu_environment
from sandbox.isolation.interpreter import interpreter_paths

CHANNEL = 3
START_S = 30.0
# After the first rank has failed, the others' waits run out; then they are stopped.
_MARGIN_S = 3.0
_WALL_S = 900.0
_LIMITS = Limits(_WALL_S, 16 << 30, processes=128, output_bytes=1 << 20, file_bytes=64 << 20)
_PACKAGES = tuple(Path(str(package.__file__)).parent for package in (pk_runtime, sandbox))
_ENV = {
    "PYTHONPATH": str(_PACKAGES[0].parent),
    "PYTHONDONTWRITEBYTECODE": "1",
    # A kernel that is loaded at its first launch would wait for peers that already spin.
    "CUDA_MODULE_LOADING": "EAGER",
    "CUDA_CACHE_DISABLE": "1",
}
_SHOWN = 800


class GroupEnded(Exception):  # noqa: N818 - an outcome of running a candidate
    """Not every rank did a command; the whole group has been stopped."""

    def __init__(self, command: str, outcomes: Sequence[Outcome]) -> None:
        told = "; ".join(f"rank {o.rank} {o.ended} {o.error} {o.said}".strip() for o in outcomes)
        super().__init__(f"{command}: {told}")
        self.command = command
        self.outcomes = tuple(outcomes)


class Process(Protocol):
    """A started runner; `sandbox.isolation.Session` is one."""

    def poll(self) -> Completed | None:
        """How it ended, or None while it runs."""
        ...

    def kill(self) -> Completed:
        """Ends it with all that it started."""
        ...


class Starter(Protocol):
    """Starts a runner with `channel` as its descriptor 3."""

    def __call__(self, command: Command, channel: socket.socket) -> Process: ...


def sandboxed(executor: NamespaceExecutor, world_size: int) -> Starter:
    """Runners in sandboxes of `executor` that may use the GPUs and nothing else."""
    devices = gpu_devices(world_size)

    def start(command: Command, channel: socket.socket) -> Session:
        return executor.start(command, channel=channel, devices=devices)

    return start


def unprotected(command: Command, channel: socket.socket) -> Process:
    """A runner with the judge's own rights: what --no-isolation asks for."""
    return _LocalProcess(command, channel)


class RunnerGroup:
    """One runner per rank. A context manager: the end of the block ends every runner."""

    def __init__(
        self,
        starter: Starter,
        world_size: int,
        workspace: Path,
        *,
        read_only: Sequence[Path],
        wait_s: float,
        argv: Sequence[str] = (sys.executable, "-S", "-m", "sandbox.gpu.runner"),
    ) -> None:
        self._wait_s = wait_s
        self._processes: list[Process] = []
        self._channels: list[Channel] = []
        workspace.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-", dir=workspace)
        try:
            for rank in range(world_size):
                self._start(starter, rank, tuple(read_only), tuple(argv))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "RunnerGroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(
        self,
        command: str,
        fields: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        *,
        world: int | None = None,
        timeout_s: float,
        files: Sequence[int] = (),
    ) -> list[dict[str, Any]]:
        """One command to the first `world` ranks, with the same files; GroupEnded unless all do it.

        `fields` are the same for all ranks, or one mapping for each.
        """
        channels = self._channels[:world]
        bodies = [fields] * len(channels) if isinstance(fields, Mapping) else list(fields)
        answers = ask_all(
            channels,
            command,
            bodies or [{}] * len(channels),
            timeout_s=timeout_s,
            files=[files] * len(channels) if files else None,
            after_failure_s=self._wait_s + _MARGIN_S,
        )
        if all(answer.ok for answer in answers):
            return [answer.body or {} for answer in answers]
        raise self._ended(command, answers)

    def close(self) -> None:
        """Ends every runner."""
        for channel in self._channels:
            channel.close()
        for process in self._processes:
            with contextlib.suppress(ExecutionError):
                process.kill()
        self._channels, self._processes = [], []
        self._folder.cleanup()

    def _start(
        self, starter: Starter, rank: int, read_only: tuple[Path, ...], argv: tuple[str, ...]
    ) -> None:
        workdir = Path(self._folder.name) / str(rank)
        workdir.mkdir()
        command = Command(
            argv=(*argv, "--channel", str(CHANNEL)),
            workdir=workdir,
            read_only=tuple(dict.fromkeys((*interpreter_paths(), *_PACKAGES, *read_only))),
            env=_ENV,
            limits=_LIMITS,
        )
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._channels.append(Channel(ours))
        self._processes.append(starter(command, theirs))

    def _ended(self, command: str, answers: Sequence[Answer]) -> GroupEnded:
        """Stops every rank; what they said.

        SandboxFault if a sandbox failed, ExecutionError if a runner's own code did: neither is the
        candidate's fault.
        """
        with ThreadPoolExecutor(len(self._processes)) as threads:
            completed = list(threads.map(lambda process: process.kill(), self._processes))
        for rank, answer in enumerate(answers):
            if answer.body is not None and answer.body.get("internal") is True:
                raise ExecutionError(
                    f"the runner of rank {rank} failed at {command!r}: {clean(answer.failed)}"
                )
        outcomes = [_outcome(rank, answer, completed[rank]) for rank, answer in enumerate(answers)]
        return GroupEnded(command, outcomes)


def _outcome(rank: int, answer: Answer, completed: Completed) -> Outcome:
    said = completed.stderr.decode(errors="replace").strip()[-_SHOWN:]
    if answer.ok:
        return Outcome(rank, "answered", body=answer.body or {})
    if answer.body is not None:
        reports = answer.body.get("reports")
        texts = tuple(clean(report) for report in reports[:64]) if isinstance(reports, list) else ()
        refused = answer.body.get("refused") is True and not texts
        return Outcome(rank, "failed", clean(answer.failed), texts, refused, said)
    if answer.late:
        return Outcome(rank, "late", said=said)
    if completed.exceeded is not None:
        how = f"it exceeded its {completed.exceeded} limit"
    elif completed.signal:
        how = f"signal {completed.signal}"
    else:
        how = f"exit code {completed.exit_code}"
    return Outcome(rank, "died", f"its process ended ({how})", said=said)


class _LocalProcess:
    """A plain subprocess. It has the channel under another number, which is told in its place."""

    def __init__(self, command: Command, channel: socket.socket) -> None:
        self._completed: Completed | None = None
        with channel:
            number = channel.fileno()
            self._process = subprocess.Popen(
                (*command.argv[:-1], str(number)),
                cwd=command.workdir,
                env={**gpu_environment(), **command.env, "PATH": "/usr/bin:/bin"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(number,),
                start_new_session=True,
            )

    def poll(self) -> Completed | None:
        """How it ended, or None while it runs."""
        return None if self._process.poll() is None else self.kill()

    def kill(self) -> Completed:
        """Ends it, with what it started."""
        if self._completed is not None:
            return self._completed
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        _, stderr = self._process.communicate()
        code = self._process.returncode
        self._completed = Completed(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            exceeded=None,
            stdout=b"",
            stderr=stderr[-_SHOWN:],
            wall_s=0.0,
        )
        return self._completed
