"""The processes of jobs: started, stopped, and never left behind. Only this module starts them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired  # house: processes, one for each job
from typing import NoReturn

RUN_JOB = (sys.executable, "-m", "workers", "run-job")
EXIT_ABANDONED = 75

_PR_SET_PDEATHSIG = 1


class JobProcess:
    """One running job, in a session of its own: what a terminal sends does not reach it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        argv = [*command, "--parent", str(os.getpid())]
        self._process = Popen(argv, env=environment, stdin=DEVNULL, start_new_session=True)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code (negative: the signal that ended it), or None while it runs."""
        return self._process.poll()

    def drain(self) -> None:
        """Ask it to hand its job back and end."""
        self._process.terminate()

    def end(self, within_s: float) -> None:
        """Wait for its end, and kill it when that takes longer than `within_s` seconds."""
        try:
            self._process.wait(within_s)
        except TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it is gone.

    Exits at once if process `parent` was gone before.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit(f"process {parent}, which started this one, has ended")


def abandon() -> None:
    """End this process at once, with all that it has started: for work that cannot be stopped."""
    exit_now(EXIT_ABANDONED)


def exit_now(code: int) -> NoReturn:
    """End this process and all that it has started, without waiting for its threads."""
    kill_descendants()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def kill_descendants() -> None:
    """Kill what this process has started: work cut off at the wrong moment may have left some."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """All processes that descend from `pid`, nearest first."""
    found: list[int] = []
    pending = [pid]
    while pending:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pending.pop(0)}/task").iterdir():
                children = [int(child) for child in (task / "children").read_text().split()]
                found += children
                pending += children
    return found
