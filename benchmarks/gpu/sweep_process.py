"""The timing half of the sweep: a child process that drives all GPUs, and its keeper.

A kernel that gives up ends the CUDA contexts of its process, and one that hangs must be killed. So
the child says which combination it is about to run; when the child is lost, the keeper gives that
combination the blame and starts another child with the rest.
"""

import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SILENCE_S = 90.0  # the longest a child may take between two messages
GEMM_ALONE = "(cuBLAS GEMM alone, no communication)"


@dataclass(frozen=True)
class Job:
    """What to time: the problem at one size, and (knobs, library) of every combination."""

    problem: str
    dims: dict[str, int]
    world_size: int  # 0: all GPUs there are
    libraries: tuple[tuple[str, Path], ...]
    seconds: float
    timeout_s: float
    eager: bool = False  # launches from the host instead of CUDA graphs


@dataclass
class Measured:
    """Times of one combination, microseconds, one per turn; `result` is "ok" or what is wrong."""

    knobs: str
    blocks: int
    result: str
    times_us: list[float] = field(default_factory=list)


def measure(job: Job) -> tuple[list[Measured], list[tuple[str, str]], int]:
    """Times what it can in `job.seconds`: the times, (knobs, why) of the rest, the world size."""
    context = multiprocessing.get_context("spawn")
    deadline = time.monotonic() + job.seconds
    keeper = _Keeper([knobs for knobs, _ in job.libraries])
    left = list(job.libraries)
    while left:
        ours, theirs = context.Pipe()
        work = replace(job, libraries=tuple(left))
        child = context.Process(target=_child, args=(theirs, work, deadline), daemon=True)
        child.start()
        theirs.close()
        lost = keeper.listen(ours)
        child.join(2.0 if lost is None else 0.5)
        if child.is_alive():
            child.kill()
            child.join(30.0)
        if lost is None or time.monotonic() > deadline:
            break
        left = [(knobs, path) for knobs, path in left if knobs not in keeper.failed]
        if keeper.running is None:  # not the fault of a combination: another try ends the same way
            keeper.failed.update((knobs, lost) for knobs, _ in left)
            break
    return keeper.result()


class _Keeper:
    """What the children said so far."""

    def __init__(self, knobs: list[str]) -> None:
        self.order = knobs
        self.measured: dict[str, Measured] = {}
        self.failed: dict[str, str] = {}
        self.running: str | None = None
        self.world_size = 0

    def listen(self, pipe: Connection) -> str | None:
        """Takes messages until the child is done (None) or lost (why)."""
        self.running = None
        while True:
            if not pipe.poll(SILENCE_S):
                return self._lose(f"no sign of life for {SILENCE_S:g} s")
            try:
                message = pipe.recv()
            except EOFError:
                return self._lose("the process ended without a word")
            kind, values = message[0], message[1:]
            if kind == "done":
                return None
            if kind == "lost":
                return self._lose(values[0])
            self._take(kind, *values)

    def _take(self, kind: str, *values: Any) -> None:
        if kind == "world":
            self.world_size = values[0]
        elif kind == "begin":
            self.running = values[0]
        elif kind == "refused":
            self.failed[values[0]] = values[1]
        elif kind == "checked":
            knobs, blocks, result = values
            known = self.measured.setdefault(knobs, Measured(knobs, blocks, result))
            if known.result == "ok":
                known.result = result
        elif kind == "time":
            self.measured[values[0]].times_us.append(values[1])

    def _lose(self, why: str) -> str:
        if self.running is not None:
            self.failed[self.running] = why
            self.measured.pop(self.running, None)
        return why

    def result(self) -> tuple[list[Measured], list[tuple[str, str]], int]:
        timed = [row for row in self.measured.values() if row.times_us]
        names = {row.knobs for row in timed} | set(self.failed)
        late = [(knobs, "the time was up") for knobs in self.order if knobs not in names]
        return timed, [*self.failed.items(), *late], self.world_size


def _child(pipe: Connection, job: Job, deadline: float) -> None:
    from benchmarks.gpu.one_process_timing import DeviceLost, Session

    try:
        session = Session(job)
        pipe.send(("world", session.world_size))
        waiting = list(job.libraries)
        while waiting and time.monotonic() < deadline:
            batch: list[Any] = []
            while waiting and (not batch or session.has_room()):
                knobs, library = waiting.pop(0)
                pipe.send(("begin", knobs))
                try:
                    entry = session.open(knobs, library)
                except DeviceLost:
                    raise
                except Exception as error:  # noqa: BLE001  it is reported and the sweep goes on
                    pipe.send(("refused", knobs, f"{type(error).__name__}: {error}"))
                    continue
                pipe.send(("checked", knobs, entry.blocks, entry.result))
                batch.append(entry)
            share = len(batch) / (len(batch) + len(waiting))
            until = time.monotonic() + (deadline - time.monotonic()) * share
            for entry, us in _turns(session, batch, until, pipe):
                pipe.send(("time", entry.knobs, us))
            for entry in batch:
                pipe.send(("begin", entry.knobs))
                pipe.send(("checked", entry.knobs, entry.blocks, session.check(entry)))
                session.close(entry)
        pipe.send(("done",))
    except BaseException as error:  # noqa: BLE001  whatever it is, the keeper has to know
        pipe.send(("lost", f"{type(error).__name__}: {error}"))
        pipe.close()
        os._exit(3)  # contexts that a kernel has ended hang in an ordinary exit


MIN_TURNS, MAX_TURNS, STEADY_TURNS, STEADY = 3, 60, 15, 0.003


def _turns(session: Any, batch: list[Any], until: float, pipe: Connection) -> Iterator[Any]:
    """(entry, us): every entry in turn, until time is up or the medians no longer move."""
    history: dict[str, list[float]] = {}
    for turn in range(MAX_TURNS):
        if turn >= MIN_TURNS and time.monotonic() > until:
            return
        for entry in batch:
            pipe.send(("begin", entry.knobs))
            us = session.time_us(entry)
            history.setdefault(entry.knobs, []).append(us)
            yield entry, us
        if turn >= STEADY_TURNS and all(_steady(times) for times in history.values()):
            return


def _steady(times: list[float]) -> bool:
    """Whether the last turn left the median where it was."""
    now = statistics.median(times)
    return abs(statistics.median(times[:-1]) - now) <= STEADY * now
