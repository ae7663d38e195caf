"""Running programs under limits. The only module of pk_runtime that starts processes.

An `Executor` runs one command to its end. `LocalExecutor` adds limits and nothing else: code that
is not trusted belongs into an isolating executor, which the sandbox package provides.
"""

import contextlib
import math
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, Protocol

Exceeded = Literal["wall", "memory", "output"]

_TICK_S = 0.02
_DRAIN_S = 2.0
_READ_BYTES = 1 << 16
_FILE_BLOCK_BYTES = 512
# A limit that cannot be set is lower already.
_SET_LIMITS = (
    'ulimit -c 0; ulimit -f "$1" 2>/dev/null; '
    'if [ "$2" -gt 0 ]; then ulimit -S -t "$2"; ulimit -H -t "$(($2 + 1))"; fi 2>/dev/null; '
    'shift 2; exec "$@"'
)


class ExecutionError(RuntimeError):
    """A program could not be started at all; the message says which one, and what to do."""


@dataclass(frozen=True)
class Limits:
    """What one command may use: seconds of wall time, bytes, processes alive at once.

    `cpu_s` is CPU time of each process, in whole seconds, rounded up: the end is SIGXCPU. None: as
    much as there is until the wall.
    """

    wall_s: float
    memory_bytes: int
    processes: int = 64
    output_bytes: int = 8 << 20
    file_bytes: int = 1 << 30
    cpu_s: float | None = None


@dataclass(frozen=True)
class Command:
    """A program with its arguments, the one folder it may write to, and the rest it may read.

    The environment is exactly `env`; nothing is inherited. Standard input is empty.
    """

    argv: tuple[str, ...]
    workdir: Path
    read_only: tuple[Path, ...]
    env: Mapping[str, str]
    limits: Limits


@dataclass(frozen=True)
class Completed:
    """How a command ended. Exactly one of `exit_code` and `signal` is set."""

    exit_code: int | None
    signal: int | None
    exceeded: Exceeded | None
    stdout: bytes
    stderr: bytes
    wall_s: float

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.exit_code == 0 and self.exceeded is None


class Executor(Protocol):
    """Runs commands. What a command leaves running is killed before `run` returns."""

    @property
    def name(self) -> str:
        """What kind of isolation this is, e.g. "none" or "bubblewrap"."""
        ...

    def run(self, command: Command) -> Completed:
        """Runs a command to its end or to its limits; ExecutionError if it cannot be started."""
        ...


class LocalExecutor:
    """Runs commands as plain subprocesses in a session of their own, with limits. NO isolation.

    Memory is the sum of what the command and its descendants hold resident. `limits.processes` is
    not enforced: the system counts all processes of a user, not those of a command. A process that
    leaves the session on purpose outlives the command.
    """

    name = "none"

    def run(self, command: Command) -> Completed:
        """Runs a command to its end or to its limits; ExecutionError if it cannot be started."""
        started = time.monotonic()
        with _start(command) as process:
            try:
                watch = _Watch(process, command.limits, started)
                exceeded = watch.until_end()
            finally:
                _kill_session(process)
        code = process.returncode
        return Completed(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            exceeded=exceeded,
            stdout=bytes(watch.output["stdout"]),
            stderr=bytes(watch.output["stderr"]),
            wall_s=time.monotonic() - started,
        )


@dataclass
class _Watch:
    process: subprocess.Popen[bytes]
    limits: Limits
    started: float
    output: dict[str, bytearray] = field(
        default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()}
    )

    def until_end(self) -> Exceeded | None:
        """Collects output until the process ends; kills it when it exceeds a limit."""
        with selectors.DefaultSelector() as selector:
            for name in self.output:
                stream: IO[bytes] = getattr(self.process, name)
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, name)
            exceeded: Exceeded | None = None
            while exceeded is None and self.process.poll() is None:
                exceeded = self._collect(selector, _TICK_S) or self._limit_reached()
            _kill_session(self.process)
            deadline = time.monotonic() + _DRAIN_S
            # The pipes end when the last process that was killed is gone.
            while selector.get_map() and time.monotonic() < deadline:
                more = self._collect(selector, _TICK_S)
                exceeded = exceeded or more
            return exceeded

    def _collect(self, selector: selectors.BaseSelector, wait_s: float) -> Exceeded | None:
        if not selector.get_map():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(wait_s)
            return None
        for key, _ in selector.select(wait_s):
            chunk = os.read(key.fd, _READ_BYTES)
            if not chunk:
                selector.unregister(key.fileobj)
            room = self.limits.output_bytes - sum(map(len, self.output.values()))
            self.output[key.data] += chunk[:room]
            if len(chunk) > room:
                return "output"
        return None

    def _limit_reached(self) -> Exceeded | None:
        if time.monotonic() - self.started > self.limits.wall_s:
            return "wall"
        if resident_bytes(self.process.pid) > self.limits.memory_bytes:
            return "memory"
        return None


def _start(command: Command) -> subprocess.Popen[bytes]:
    program = command.argv[0]
    if shutil.which(program, path=command.env.get("PATH", os.defpath)) is None:
        raise ExecutionError(f"there is no program {program!r}: install it or correct its path")
    blocks = str(command.limits.file_bytes // _FILE_BLOCK_BYTES)
    # A shell sets the limits: Python code between fork and exec can deadlock in a threaded process.
    seconds = str(math.ceil(command.limits.cpu_s or 0))
    argv = ("/bin/sh", "-c", _SET_LIMITS, "sh", blocks, seconds, *command.argv)
    try:
        return subprocess.Popen(
            argv,
            cwd=command.workdir,
            env=dict(command.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise ExecutionError(f"cannot start {program!r} in {command.workdir}: {error}") from error


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and all its descendants, 0 where /proc does not tell."""
    total = 0
    pending = [pid]
    while pending:
        process = Path("/proc") / str(pending.pop())
        try:
            total += int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            for task in (process / "task").iterdir():
                pending += map(int, (task / "children").read_text().split())
        except (OSError, IndexError, ValueError):
            continue
    return total
