"""What one rank does: every row, every contender, all ranks in step.

Rank 0 tells the parent what is about to run and the results of each row. A contender that cannot be
prepared on some rank is dropped on all. One whose kernels give up or hang loses the processes: the
parent starts new ones and has them leave it out.
"""

import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu import peers
from benchmarks.gpu.case import ERROR_LIMIT, Case, Ranks
from benchmarks.gpu.contenders import Built, NotApplicable, Prepared, contender_of, ours
from benchmarks.gpu.points import Point
from benchmarks.gpu.timing import Entry, LostError, check_again, make_ready, time_rounds, wait
from pk_runtime.gpu.symmetric import SymmetricHeap

COLLECTIVE_LIMIT_S = 60
ROW_S = 12.0  # what a row may take at most, guessed; no row is begun when less is left

HOPELESS = 1e9  # stands for an error that is infinite or no number
INPUTS = "(inputs and exact result)"

Make = Callable[[Case], Prepared]


@dataclass(frozen=True)
class Plan:
    """What the ranks are to do."""

    world: int
    store: str  # a file that does not exist yet, where the ranks meet
    rows: tuple[Point, ...]
    built: dict[str, tuple[Built, ...]]  # by the row's key
    skip: dict[tuple[str, str], str]  # (row, contender): why
    rounds: int
    deadline: float  # of time.monotonic()


@dataclass
class Row:
    """The results of one row as they are collected."""

    entries: list[Entry] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    built: dict[str, Built] = field(default_factory=dict)


def rank_main(rank: int, plan: Plan, pipe: Connection) -> None:
    """The process of one rank. Sends tuples: "begin", "row", "late", and "done" or "lost" last."""
    try:
        ranks = _join(rank, plan)
        if rank == 0:
            pipe.send(("world", plan.world))
        for point in plan.rows:
            late = max(ranks.heap.agree("go on", time.monotonic() + ROW_S > plan.deadline))
            if late:
                if rank == 0:
                    pipe.send(("late", point.key))
                continue
            _run_row(ranks, plan, point, pipe)
        pipe.send(("done",))
        ranks.heap.close()
    except BaseException as error:  # noqa: BLE001  whatever it is, the parent has to know
        pipe.send(("lost", f"rank {rank}: {type(error).__name__}: {error}"))
    pipe.close()
    # NCCL's and CUDA's own ends of a process hang when a GPU gave up; nothing is left to save.
    os._exit(0)


def _join(rank: int, plan: Plan) -> Ranks:
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{plan.store}",
        rank=rank,
        world_size=plan.world,
        timeout=timedelta(seconds=COLLECTIVE_LIMIT_S),
        device_id=torch.device("cuda", rank),
    )
    group = dist.group.WORLD
    assert group is not None
    heap = SymmetricHeap.from_group(group, device=rank, deadline_s=COLLECTIVE_LIMIT_S)
    return Ranks(rank, plan.world, group, heap)


def _run_row(ranks: Ranks, plan: Plan, point: Point, pipe: Connection) -> None:
    begun = time.monotonic()
    row = Row()

    def announce(name: str) -> None:
        if ranks.rank == 0:
            pipe.send(("begin", point.key, name))

    cases: list[Case] = []
    announce(INPUTS)
    why = plan.skip.get((point.key, INPUTS)) or _together(
        ranks,
        f"inputs of {point.key}",
        lambda: cases.append(Case(ranks, point.problem, point.dims, point.key)),
    )
    if why is not None:
        if ranks.rank == 0:
            pipe.send(("row", point.key, {"contenders": [], "failed": [(INPUTS, why)]}, 0.0))
        return
    case = cases.pop()
    for name, mode, make, built in _contenders(plan, point):
        skipped = plan.skip.get((point.key, name))
        if skipped is not None:
            row.failed.append((name, skipped))
            continue
        announce(name)
        _add(case, row, name, mode, make)
        if built is not None:
            row.built[name] = built
    time_rounds(ranks, row.entries, plan.rounds, announce)
    _staged(case, row, plan, announce)
    for entry in row.entries:
        announce(entry.name)
        entry.error = _worst(ranks, check_again(case, entry))
    if ranks.rank == 0:
        pipe.send(("row", point.key, _record(case, row), round(time.monotonic() - begun, 2)))
    torch.cuda.synchronize()
    ranks.heap.barrier()
    for entry in row.entries:
        _close(entry)
    row.entries.clear()
    del case
    torch.cuda.empty_cache()


def _contenders(plan: Plan, point: Point) -> list[tuple[str, str, Make, Built | None]]:
    """(name, mode, how to prepare it, our kernel if it is one), the same on every rank."""
    named: list[tuple[str, str, Make, Built | None]] = [
        ("nccl eager", "eager", contender_of("nccl"), None),
        ("nccl graph", "graph", contender_of("nccl"), None),
    ]
    for name in point.peers:
        mode = "eager" if name in peers.EAGER else "graph"
        named.append((name, mode, contender_of(name), None))
    for built in plan.built.get(point.key, ()):
        named.append((built.name, "graph", _make_ours(built), built))
    return named


def _make_ours(built: Built) -> Make:
    return lambda case: ours(case, built)


def _add(case: Case, row: Row, name: str, mode: str, make: Make) -> bool:
    """Prepares a contender on all ranks, or on none; says whether it is in."""
    made: list[Prepared] = []
    ranks = case.ranks
    why = _together(ranks, f"prepare {name}", lambda: made.append(make(case)))
    entry = Entry(name, mode, made[0]) if made else None
    if why is None and entry is not None:
        why = _together(ranks, f"check {name}", lambda: make_ready(case, entry))
    if why is None and entry is not None:
        entry.error = _worst(ranks, entry.error)
        row.entries.append(entry)
        return True
    row.failed.append((name, why or "it could not be prepared"))
    if entry is not None:
        _close(entry)
    return False


def _together(ranks: Ranks, what: str, action: Callable[[], object]) -> str | None:
    """Does something on all ranks; why it failed on the first that says so, None if on none.

    LostError goes on: after it no rank can be waited for.
    """
    why = None
    try:
        action()
    except LostError:
        raise
    except NotApplicable as error:
        why = str(error)
    except Exception as error:  # noqa: BLE001  other people's code may raise anything
        why = f"{type(error).__name__}: {str(error).strip()[:600]}"
        wait()  # raises LostError if the GPU is gone
    for rank, theirs in enumerate(ranks.heap.agree(what, why)):
        if theirs is not None:
            return f"rank {rank}: {theirs}"
    return None


def _staged(case: Case, row: Row, plan: Plan, announce: Callable[[str], None]) -> None:
    """Our fastest right kernel once more with tensors outside symmetric memory, copies counted."""
    mine = [e for e in row.entries if e.name in row.built and _right(e)]
    theirs = next((e for e in row.entries if e.name == "nccl graph"), None)
    if not mine or theirs is None:
        return
    best = min(mine, key=lambda e: statistics.median(e.times_us))
    name = f"{best.name}, staged"
    if (case.key, name) in plan.skip:
        return
    announce(name)
    built = row.built[best.name]
    if _add(case, row, name, "graph", lambda case: ours(case, built, staged=True)):
        kept = theirs.times_us
        time_rounds(case.ranks, [row.entries[-1], theirs], max(3, plan.rounds // 2), announce)
        theirs.times_us = kept


def _worst(ranks: Ranks, error: float | None) -> float | None:
    """The largest error of any rank, so that all judge alike; a huge number for what has none."""
    own = None if error is None else error if math.isfinite(error) else HOPELESS
    errors = [e for e in ranks.heap.agree("the errors", own) if e is not None]
    return max(errors) if errors else None


def _right(entry: Entry) -> bool:
    return not entry.prepared.checked or (entry.error is not None and entry.error < ERROR_LIMIT)


def _close(entry: Entry) -> None:
    entry.run = lambda: None
    entry.first = {}
    entry.prepared.calls.clear()
    entry.prepared.close()


def _record(case: Case, row: Row) -> dict[str, Any]:
    """What rank 0 reports of a row."""
    return {
        "sets": len(case.sets),
        "nvlink_bytes": case.problem.nvlink_bytes(case.dims, case.ranks.world),
        "flops": case.problem.flops(case.dims, case.ranks.world),
        "contenders": [_entry_record(entry, row.built) for entry in row.entries],
        "failed": row.failed,
    }


def _entry_record(entry: Entry, built: dict[str, Built]) -> dict[str, Any]:
    mine = built.get(entry.name.removesuffix(", staged"))
    return {
        "name": entry.name,
        "mode": entry.mode,
        "us": round(statistics.median(entry.times_us), 3),
        "us_min": round(min(entry.times_us), 3),
        "us_max": round(max(entry.times_us), 3),
        "rounds": len(entry.times_us),
        "calls": entry.calls * entry.runs,
        "right": _right(entry),
        "error": entry.error,
        "sms": entry.prepared.sms,
        "note": entry.prepared.note,
        "kernel": mine.kernel if mine else None,
        "knobs": mine.knobs if mine else None,
        "staged": entry.name.endswith(", staged"),
    }
