"""How a contender is timed: as a CUDA graph or eager, all ranks lined up, in rounds by turns."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from benchmarks.gpu.case import Case, Ranks, Tensors
from benchmarks.gpu.contenders import Prepared

SAMPLE_US = 3000.0  # GPU time of one sample
MAX_GRAPH_CALLS, MAX_EAGER_CALLS = 200, 50
WAIT_S = 30.0
LEAD_CYCLES = 500_000  # about 0.25 ms in which the host enqueues a sample
POLL_S = 0.0002

PROTOCOL = (
    "one process per GPU; every contender of a row is checked against the fp64 result, then timed "
    "in rounds by turns (ABAB); a sample is several calls back to back between two events, started "
    "behind an all-reduce that lines the ranks up, 3 ms long if the calls are shorter; a time is "
    "the maximum over ranks, per call; medians over rounds; 'graph' is the replay of a CUDA graph "
    "of several calls, 'eager' calls from Python; inputs of 4 MiB and more rotate through 3 times "
    "the L2; results are checked again after the last round"
)


class LostError(RuntimeError):
    """The GPU work of this process cannot be trusted to end: the process has to go."""


@dataclass
class Entry:
    """A contender in one mode, ready to be timed."""

    name: str
    mode: str  # "graph" or "eager"
    prepared: Prepared
    run: Callable[[], object] = lambda: None
    calls: int = 0  # of one run
    runs: int = 1  # of one sample
    first: Tensors = field(default_factory=dict)  # what set 0's call returned
    error: float | None = None
    times_us: list[float] = field(default_factory=list)


def wait(failures: Callable[[], list[str]] = list) -> None:
    """Waits for the current stream. LostError, with what a kernel says, if it does not end."""
    stream, deadline = torch.cuda.current_stream(), time.monotonic() + WAIT_S
    try:
        while not stream.query():
            if time.monotonic() > deadline:
                why = "; ".join(failures()) or "no kernel says why"
                raise LostError(f"not done within {WAIT_S:g} s: {why}")
            time.sleep(POLL_S)
    except LostError:
        raise
    except RuntimeError as error:
        why = "; ".join(failures()) or str(error).splitlines()[0]
        raise LostError(f"the GPU gave up: {why}") from error


def make_ready(case: Case, entry: Entry) -> None:
    """Runs every call, checks the first result, and makes the graph where there is to be one."""
    prepared = entry.prepared
    for call in prepared.calls:
        result = call()
        entry.first = entry.first or result
    wait(prepared.failures)
    if prepared.checked:
        entry.error = case.error(entry.first)
    us = _estimate_us(case.ranks, entry)
    sets = len(prepared.calls)
    most = MAX_GRAPH_CALLS if entry.mode == "graph" else MAX_EAGER_CALLS
    calls = max(1, min(most, round(SAMPLE_US / us)))
    calls = -(-calls // sets) * sets if entry.mode == "graph" or calls > sets else calls
    entry.calls = calls
    if entry.mode == "graph":
        _capture(entry)
        entry.runs = max(1, round(SAMPLE_US / (us * calls)))
    else:
        entry.run = _looping(prepared, calls)
    sample_us(case.ranks, entry)


def _estimate_us(ranks: Ranks, entry: Entry) -> float:
    """The slowest rank's microseconds of an eager call, so that all ranks plan the same."""
    entry.run, entry.calls, entry.runs = _looping(entry.prepared, 4), 4, 1
    own = min(sample_us(ranks, entry) for _ in range(2))
    return max(float(us) for us in ranks.heap.agree("an estimate", own))


def _looping(prepared: Prepared, calls: int) -> Callable[[], object]:
    def run() -> None:
        for number in range(calls):
            prepared.calls[number % len(prepared.calls)]()

    return run


def _capture(entry: Entry) -> None:
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for number in range(entry.calls):
            result = entry.prepared.calls[number % len(entry.prepared.calls)]()
            # Kept, so that the graph's memory of the last call with set 0 is not used again.
            if number % len(entry.prepared.calls) == 0:
                entry.first = result
            del result
    entry.run = graph.replay


def sample_us(ranks: Ranks, entry: Entry) -> float:
    """This rank's microseconds per call of one sample."""
    torch.cuda.synchronize()
    ranks.heap.barrier()
    if entry.mode == "graph":
        torch.cuda._sleep(LEAD_CYCLES)  # type: ignore[no-untyped-call]
    line_up(ranks)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(entry.runs):
        entry.run()
    end.record()
    wait(entry.prepared.failures)
    return float(start.elapsed_time(end)) * 1e3 / (entry.calls * entry.runs)


_line: dict[int, torch.Tensor] = {}


def line_up(ranks: Ranks) -> None:
    """All ranks' streams meet: a small all-reduce ends nearly at once everywhere."""
    if ranks.rank not in _line:
        _line[ranks.rank] = torch.zeros(8, device="cuda")
    dist.all_reduce(_line[ranks.rank], group=ranks.group)


def time_rounds(
    ranks: Ranks, entries: list[Entry], rounds: int, announce: Callable[[str], None]
) -> None:
    """Times the entries by turns; `times_us` of each becomes one maximum over ranks per round."""
    own: list[list[float]] = [[] for _ in entries]
    for _ in range(rounds):
        for entry, times in zip(entries, own, strict=True):
            announce(entry.name)
            times.append(sample_us(ranks, entry))
    everyone = ranks.heap.agree("the times", own)
    for number, entry in enumerate(entries):
        by_rank = [rank[number] for rank in everyone]
        entry.times_us = [max(times) for times in zip(*by_rank, strict=True)]


def check_again(case: Case, entry: Entry) -> float | None:
    """The error of what set 0's timed call writes into poisoned memory."""
    if not (entry.prepared.checked and entry.prepared.repeatable) or entry.mode != "graph":
        return entry.error
    for tensor in entry.first.values():
        tensor.fill_(float("nan"))
    torch.cuda.synchronize()
    case.ranks.heap.barrier()
    entry.run()
    wait(entry.prepared.failures)
    return case.error(entry.first)
