"""Timelines of a run as Chrome trace events, which https://ui.perfetto.dev opens.

A `Trace` is what both sources give: the simulator (`Simulator.timing(..., trace=...)`) and the
timestamps that a kernel built with -DPK_TRACE records on GPUs. `chrome` turns any number of them
into one document, so that a predicted and a measured timeline lie side by side.

Format: "Trace Event Format" of the Chromium project: complete events (`ph` "X") with `ts` and `dur`
in microseconds, counters ("C"), and metadata ("M") that name processes and threads.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROLES = ("loader", "consumer", "storer", "communicator")
PORTS = ("link out", "link in", "HBM")
MOST_SLICES = 1 << 20
MOST_INTERVALS = 1 << 16
_MOST_NAME = 60
# Thread ids: ports are counters and need none; block b's role r is thread (b + 1) * 8 + r.
_BLOCK_STRIDE = 8


class TraceError(ValueError):
    """A recorded timeline that is out of form; the message names the entry."""


@dataclass(frozen=True)
class Slice:
    """What one role of one block of one rank did for a while; times in microseconds."""

    rank: int
    block: int
    role: str
    name: str
    start_us: float
    duration_us: float


@dataclass(frozen=True)
class Meter:
    """How busy a port of a rank was: per interval of `width_us`, (busy microseconds, bytes)."""

    rank: int
    port: str
    width_us: float
    intervals: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Trace:
    """One run. `left_out` slices were not recorded, all of them after `complete_until_us`."""

    slices: tuple[Slice, ...]
    meters: tuple[Meter, ...]
    left_out: int = 0
    complete_until_us: float = 0.0

    @staticmethod
    def from_engine(data: object) -> "Trace":
        """Reads the trace.json of the simulator, an untrusted process; TraceError if malformed."""
        if not isinstance(data, Mapping):
            raise TraceError("a trace must be an object")
        slices, meters = data.get("slices"), data.get("ports")
        if not isinstance(slices, list) or not isinstance(meters, list):
            raise TraceError("a trace needs lists of slices and ports")
        if len(slices) > MOST_SLICES:
            raise TraceError(f"a trace has at most {MOST_SLICES} slices")
        return Trace(
            tuple(_slice(item, f"slices[{i}]") for i, item in enumerate(slices)),
            tuple(_meter(item, f"ports[{i}]") for i, item in enumerate(meters)),
            int(_number(data.get("left_out"), "left_out")),
            _number(data.get("complete_until_us"), "complete_until_us"),
        )


def chrome(runs: Mapping[str, Trace]) -> dict[str, Any]:
    """One document of several runs, by title: every rank of every run is a process in it.

    Events are sorted by time; slices of one thread neither overlap nor go backwards if they did not
    when they were recorded.
    """
    metadata: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    first = 0
    for title, trace in runs.items():
        seen = [*(s.rank for s in trace.slices), *(meter.rank for meter in trace.meters)]
        ranks = 1 + max(seen, default=-1)
        metadata += _names(title, trace, first, ranks)
        events += _slices(trace.slices, first)
        for meter in trace.meters:
            events += _counters(meter, first)
        first += ranks
    events.sort(key=lambda event: float(event["ts"]))
    notes = {title: _note(trace) for title, trace in runs.items()}
    return {
        "displayTimeUnit": "ns",
        "otherData": {"producer": "pkforge", **notes},
        "traceEvents": metadata + events,
    }


def write_chrome(path: Path, runs: Mapping[str, Trace]) -> None:
    """Writes `chrome(runs)` to a file, replacing it only when the whole is written. OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(json.dumps(chrome(runs), allow_nan=False), encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _note(trace: Trace) -> str:
    shown = f"{len(trace.slices)} slices of sampled blocks"
    if not trace.left_out:
        return shown
    return f"{shown}; {trace.left_out} more after {trace.complete_until_us:.1f} us are left out"


def _names(title: str, trace: Trace, first: int, ranks: int) -> Iterator[dict[str, Any]]:
    for rank in range(ranks):
        yield _meta("process_name", first + rank, 0, {"name": f"{title}: rank {rank}"})
        yield _meta("process_sort_index", first + rank, 0, {"sort_index": first + rank})
    for rank, block, role in sorted({(s.rank, s.block, s.role) for s in trace.slices}):
        thread = _thread(block, role)
        yield _meta("thread_name", first + rank, thread, {"name": f"SM {block} {role}"})
        yield _meta("thread_sort_index", first + rank, thread, {"sort_index": thread})


def _meta(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _thread(block: int, role: str) -> int:
    return (block + 1) * _BLOCK_STRIDE + ROLES.index(role)


def _slices(slices: Sequence[Slice], first: int) -> Iterator[dict[str, Any]]:
    for s in slices:
        yield {
            "ph": "X",
            "name": s.name,
            "cat": "wait" if s.name.startswith("wait") else "work",
            "pid": first + s.rank,
            "tid": _thread(s.block, s.role),
            "ts": s.start_us,
            "dur": s.duration_us,
        }


def _counters(meter: Meter, first: int) -> Iterator[dict[str, Any]]:
    """Average use per interval, where it changes; a last one says that it has ended."""
    before: tuple[float, float] | None = None
    for number, interval in enumerate((*meter.intervals, (0.0, 0.0))):
        if interval == before:
            continue
        before = interval
        busy, size = interval
        yield {
            "ph": "C",
            "name": meter.port,
            "pid": first + meter.rank,
            "tid": 0,
            "ts": number * meter.width_us,
            "args": {
                "busy": busy / meter.width_us,
                "GB/s": size / meter.width_us / 1e3,
            },
        }


def _slice(item: object, where: str) -> Slice:
    match item:
        case [int(rank), int(block), str(role), str(name), start, duration] if (
            0 <= rank < 64 and 0 <= block < 4096 and role in ROLES
        ):
            shown = "".join(c if c.isprintable() else "?" for c in name[:_MOST_NAME])
            return Slice(rank, block, role, shown, _number(start, where), _number(duration, where))
    raise TraceError(f"{where} is not [rank, block, role, what, start, duration]")


def _meter(item: object, where: str) -> Meter:
    match item:
        case [int(rank), str(port), width, [*intervals]] if (
            0 <= rank < 64 and port in PORTS and len(intervals) <= MOST_INTERVALS
        ):
            pairs = tuple(_pair(pair, where) for pair in intervals)
            if (width_us := _number(width, where)) > 0:
                return Meter(rank, port, width_us, pairs)
    raise TraceError(f"{where} is not [rank, port, width, [[busy, bytes], ...]]")


def _pair(pair: object, where: str) -> tuple[float, float]:
    match pair:
        case [busy, size]:
            return _number(busy, where), _number(size, where)
    raise TraceError(f"{where} has an interval that is not [busy, bytes]")


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TraceError(f"{where} is not a number")
    if not (math.isfinite(value) and value >= 0):
        raise TraceError(f"{where} is negative or not finite")
    return float(value)
