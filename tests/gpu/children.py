"""Work on the GPUs in child processes: a kernel that hangs or traps takes only its child along.

A child gets one JSON object on its standard input, gets ready (imports, inputs, references) while
others use the GPUs, waits for its turn, and answers with one JSON object per line.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pk_runtime.unicast import NO_MULTICAST
from tests.gpu import budget
from tests.gpu.kernels import ROOT

READY_S = 90.0
NO_TIME = "not run for lack of time"
_KILLED_S = 30.0

# One group of ranks at a time: kernels that wait for each other across GPUs and share those with
# other kernels progress by time slices.
GPUS = threading.Lock()


@dataclass(frozen=True)
class Child:
    """How a child ended: what it said, and what stopped it ("" if it ended by itself)."""

    events: tuple[dict[str, Any], ...]
    stopped: str
    stderr: str
    seconds: float

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of one kind."""
        return [event for event in self.events if event.get("event") == kind]

    @property
    def trouble(self) -> str:
        """Why the child did not do all of its work, else nothing."""
        if reports := self.of("report"):
            return str(reports[-1]["text"])
        if self.stopped or not self.of("end"):
            last = self.stderr.strip().splitlines()[-1:] or ["no message"]
            return self.stopped or f"the process ended: {last[0]}"
        return ""


def run(
    task: str,
    arguments: Mapping[str, Any],
    *,
    deadline_s: float,
    module: str = "tests.gpu.tasks",
    launcher: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    alone: bool = True,
    linger_s: float = 0.0,
) -> Child:
    """Runs `task` of a module in a child; it is killed `deadline_s` after its turn began.

    `launcher` is put before the interpreter's command line, e.g. a checking tool's. A child that is
    not `alone` has its turn at once. `linger_s` is what it may take to exit after its last event.
    When the time of all tests is over (budget.py) nothing is started, and what runs is killed.
    """
    if not budget.left():
        return Child((), NO_TIME, "", 0.0)
    argv = (*launcher, sys.executable, "-m", module)
    with subprocess.Popen(
        argv,
        cwd=ROOT,
        env={**os.environ, **NO_MULTICAST, "PYTHONUNBUFFERED": "1", **(env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            turn = GPUS if alone else contextlib.nullcontext()
            return _Conversation(process).hold(
                {"task": task, **arguments}, deadline_s, turn, linger_s
            )
        finally:
            kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """Ends a child and what it started; returns when it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(_KILLED_S)


class _Conversation:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        self._events: list[dict[str, Any]] = []
        self._readers = [
            threading.Thread(target=target, daemon=True) for target in (self._read, self._drain)
        ]
        for reader in self._readers:
            reader.start()

    def hold(
        self,
        task: Mapping[str, Any],
        deadline_s: float,
        turn: contextlib.AbstractContextManager[object],
        linger_s: float,
    ) -> Child:
        self._say(json.dumps(task))
        stopped = self._until("ready", READY_S)
        seconds = 0.0
        if self._events and self._events[-1]["event"] == "ready":
            with turn:
                if not budget.left():
                    return Child(tuple(self._events), NO_TIME, "", 0.0)
                started = time.monotonic()
                self._say("go")
                stopped = self._until("end", deadline_s)
                if linger_s:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(linger_s)
                kill(self._process)  # before the next one's turn, nothing of this one runs any more
                seconds = time.monotonic() - started
        kill(self._process)
        for reader in self._readers:
            reader.join(_KILLED_S)
        return Child(tuple(self._events), stopped, "".join(self._errors), seconds)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _until(self, last: str, deadline_s: float) -> str:
        """Collects events until one of kind `last`; says what was missing instead."""
        deadline_s = budget.within(deadline_s)
        end = time.monotonic() + deadline_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                return f"still running after {deadline_s:.3g} s; it was stopped"
            if line is None:
                return "" if self._process.wait(_KILLED_S) == 0 else self._how_it_ended()
            try:
                event = json.loads(line)
            except ValueError:
                self._errors.append(line)  # somebody else's print
                continue
            self._events.append(event)
            if event.get("event") in (last, "end"):
                return ""

    def _how_it_ended(self) -> str:
        self._readers[1].join(1.0)
        code = self._process.returncode
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        last = "".join(self._errors).strip().splitlines()[-1:] or ["no message"]
        return f"ended with {how}: {last[0]}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _drain(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(line)
