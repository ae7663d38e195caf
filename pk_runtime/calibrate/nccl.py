"""NCCL's collectives by size, eager and in a CUDA graph: one process per GPU, unicast only.

Rank 0 sends every result as it has it. A point that fails, or takes too long, costs itself alone:
the processes are ended, and new ones go on behind it.
"""

import multiprocessing  # house: processes, NCCL wants one process per GPU
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection  # house: processes, results come as they are measured
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from pk_runtime.calibrate.probes import PartlyMeasuredError
from pk_runtime.calibrate.transfers import Row
from pk_runtime.unicast import LOCAL

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
Backend = Literal["nccl", "gloo"]
# Without GPUs, gloo on the CPU shows that all of this works; its times mean nothing.
MODES: dict[Backend, tuple[str, ...]] = {"nccl": ("eager", "graph"), "gloo": ("eager",)}
SAMPLE_US = 4000.0
MAX_CALLS = 50
GRAPHED_CALLS = 10
START_S = 45.0  # new processes that import torch and meet
POINT_S = 10.0  # one operation at one size in one mode; it takes well under one second
CALL_LIMIT_S = 60
END_S = 5.0

Point = tuple[str, int, str]  # operation, bytes, mode


def measure_nccl(
    world: int,
    sizes: Sequence[int],
    rounds: int,
    limit_s: float,
    *,
    backend: Backend = "nccl",
) -> list[Row]:
    """Every collective at every size, within `limit_s` in all.

    The bytes are one rank's buffer for all_reduce and all_to_all, one rank's shard for all_gather
    (its input) and reduce_scatter (its output). Times are the maximum over ranks, median over
    `rounds` rounds of several calls in a row. PartlyMeasuredError, which has the rows there are, if
    some points failed or there was no time for them.
    """
    # house: environment, NCCL and torch are told nothing any other way
    os.environ.update(LOCAL)
    left = [(op, size, mode) for op in OPS for size in sizes for mode in MODES[backend]]
    rows: list[Row] = []
    failed: list[str] = []
    deadline = time.monotonic() + limit_s
    while left:
        ranks = _Ranks(world, left, rounds, backend)
        lost = ranks.run(deadline)
        rows += ranks.rows
        del left[: len(ranks.rows)]
        if lost is None or not left:
            break
        if not ranks.met or time.monotonic() >= deadline:
            failed.append(f"{lost}; {len(left)} points not measured")
            break
        op, size, mode = left.pop(max(ranks.at - len(ranks.rows), 0))
        failed.append(f"{op} of {size} bytes, {mode}: {lost}")
    if failed:
        raise PartlyMeasuredError("; ".join(failed), rows)
    return rows


def bus_bytes(op: str, size: int, world: int) -> float:
    """Bytes that NCCL's bus bandwidth counts for one call, `size` as in `measure_nccl`."""
    share = (world - 1) / world
    return {
        "all_reduce": 2 * share * size,
        "all_to_all": share * size,
        "all_gather": share * size * world,
        "reduce_scatter": share * size * world,
    }[op]


class _Ranks:
    """One set of processes, from their start to their end or loss."""

    def __init__(self, world: int, points: Sequence[Point], rounds: int, backend: Backend) -> None:
        self.world, self.points = world, tuple(points)
        self.rounds, self.backend = rounds, backend
        self.met = False
        self.at = 0  # the point at which a rank was lost
        self.rows: list[Row] = []  # those of the first points, in their order

    def run(self, deadline: float) -> str | None:
        """Measures the points; why that ended early, None if it did not."""
        # house: processes, NCCL wants one process per GPU
        context = multiprocessing.get_context("spawn")
        pipes: list[connection.Connection] = []
        children = []
        with tempfile.TemporaryDirectory() as folder:
            store = str(Path(folder) / "store")
            plan = _Plan(self.world, store, self.points, self.rounds, self.backend)
            try:
                for rank in range(self.world):
                    ours, theirs = context.Pipe()
                    pipes.append(ours)
                    child = context.Process(target=_rank, args=(rank, plan, theirs), daemon=True)
                    child.start()
                    theirs.close()
                    children.append(child)
                return self._listen(pipes, deadline)
            finally:
                for child in children:
                    child.kill()
                for child in children:
                    child.join(END_S)
                for pipe in pipes:
                    pipe.close()

    def _listen(self, pipes: list[connection.Connection], deadline: float) -> str | None:
        while True:
            limit = POINT_S if self.met else START_S
            patience = min(limit, deadline - time.monotonic())
            ready = connection.wait(pipes, max(0.0, patience))
            if not ready and patience < limit:
                return "the time for this section is up"
            if not ready:
                return f"{'no result' if self.met else 'the processes did not meet'} in {limit:g} s"
            # Rank 0 first, and all it has said: results before what another rank says of their end.
            for rank, pipe in enumerate(pipes):
                while pipe in ready and pipe.poll():
                    try:
                        kind, what = pipe.recv()
                    except (EOFError, OSError):
                        return f"rank {rank} ended without a word"
                    if kind == "lost":
                        self.at, text = what
                        return f"rank {rank}: {text}"
                    if kind == "done":
                        return None
                    self.met = True
                    if kind == "row":
                        self.rows.append(what)


@dataclass(frozen=True)
class _Plan:
    """What the processes are to do; `store` is a file that does not exist yet, where they meet."""

    world: int
    store: str
    points: tuple[Point, ...]
    rounds: int
    backend: Backend

    def device(self, rank: int) -> torch.device:
        """Where a rank's tensors are."""
        return torch.device("cuda", rank) if self.backend == "nccl" else torch.device("cpu")


def _rank(rank: int, plan: _Plan, pipe: connection.Connection) -> None:
    """The process of one rank. All send "met" or "lost", rank 0 a "row" per point and "done".

    It is ended from outside, once everything has been heard: destroying a process group waits for
    every CUDA graph that holds a collective of it, and that a rank is gone can fail its peers.
    """
    at = 0
    try:
        device = plan.device(rank)
        if plan.backend == "nccl":
            torch.cuda.set_device(device)
        dist.init_process_group(
            plan.backend,
            init_method=f"file://{plan.store}",
            rank=rank,
            world_size=plan.world,
            timeout=timedelta(seconds=CALL_LIMIT_S),
            device_id=device if plan.backend == "nccl" else None,
        )
        dist.barrier()
        pipe.send(("met", None))
        for at, point in enumerate(plan.points):  # noqa: B007  it is told when a point fails
            row = _measure(point, plan, device)
            if rank == 0:
                pipe.send(("row", row))
        if rank == 0:
            pipe.send(("done", None))
    except Exception as error:  # noqa: BLE001  whatever it is, the parent has to know
        text = (str(error).strip() or "no message").splitlines()[0]
        pipe.send(("lost", (at, f"{type(error).__name__}: {text[:300]}")))
    pipe.poll(CALL_LIMIT_S)
    os._exit(0)


def _measure(point: Point, plan: _Plan, device: torch.device) -> Row:
    op, size, mode = point
    call = _call(op, size, plan.world, device)
    run, per_run = _graphed(call) if mode == "graph" else (call, 1)
    us = _time_us(run, plan.rounds, device) / per_run
    bus = bus_bytes(op, size, plan.world) / us / 1e3
    del run, call
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return {
        "op": op,
        "mode": mode,
        "bytes": size,
        "us": round(us, 3),
        "bus_gb_per_s": round(bus, 2),
    }


def _call(op: str, size: int, world: int, device: torch.device) -> Callable[[], object]:
    small = _buffer(size, device)
    if op == "all_reduce":
        return lambda: dist.all_reduce(small)
    if op == "all_to_all":
        other = _buffer(size, device)
        return lambda: dist.all_to_all_single(other, small)
    large = _buffer(size * world, device)
    if op == "all_gather":
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        return lambda: gather(large, small)
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return lambda: scatter(small, large)


def _buffer(size: int, device: torch.device) -> Tensor:
    """Random numbers; repeated sums overflow in time, which changes no time."""
    return torch.randn(size // 2, device=device).to(torch.bfloat16)


def _graphed(call: Callable[[], object]) -> tuple[Callable[[], object], int]:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(GRAPHED_CALLS):
            call()
    return graph.replay, GRAPHED_CALLS


def _time_us(run: Callable[[], object], rounds: int, device: torch.device) -> float:
    for _ in range(3):
        run()
    once = _maximum(_span_us(run, 1, device), device)
    calls = max(1, min(MAX_CALLS, round(SAMPLE_US / once)))
    spans = [_maximum(_span_us(run, calls, device), device) for _ in range(rounds)]
    return statistics.median(spans) / calls


def _span_us(run: Callable[[], object], calls: int, device: torch.device) -> float:
    if device.type != "cuda":
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(calls):
            run()
        return (time.perf_counter() - begun) * 1e6
    torch.cuda.synchronize()
    dist.barrier()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(calls):
        run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _maximum(us: float, device: torch.device) -> float:
    value = torch.tensor(us, dtype=torch.float64, device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return float(value.item())
