"""The timeline that a kernel built with `Compiler.library(candidate, trace=True)` records.

include/pk/sm90/trace.h is the other side: timestamps of the GPU's global timer where roles begin
and end, wait and signal, for the first two and the last two blocks of the last launch. Here they
become the same `Trace` that the simulator gives, so that `pk_runtime.trace.chrome` shows both.
"""

import ctypes as c
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pk_runtime.trace import ROLES, Slice, Trace

SLOTS, MOST_RECORDS = 4, 8192
_ROLES = len(ROLES)
_RECORD = np.dtype([("at", "<u8"), ("what", "<u4"), ("detail", "<u4")])
_BUFFER = np.dtype([
    ("block", "<i4", (SLOTS,)),
    ("seen", "<u4", (SLOTS, _ROLES)),
    ("records", _RECORD, (SLOTS, _ROLES, MOST_RECORDS)),
])  # fmt: skip
_ROLE_BEGINS, _ROLE_ENDS, _WAIT_BEGINS, _WAIT_ENDS, _SIGNALS = range(5)
# By failure_kind of state.h, with the simulator's names.
_WAITS = {
    1: "wait: ring slot",
    2: "wait: ring data",
    3: "wait: signal",
    4: "wait: barrier",
    5: "enter",
    6: "leave",
    8: "wait: mailbox",
}


class TimelineError(RuntimeError):
    """A timeline that cannot be read: the kernel was built without one, or CUDA refuses."""


def read(library: Path) -> bytes:
    """What the last launch of a built kernel recorded on the current device.

    The launch must have ended: synchronize its stream first. TimelineError if the library records
    nothing, or with CUDA's error.
    """
    calls = c.CDLL(str(library))
    try:
        copy = calls.pk_trace
    except AttributeError:
        raise TimelineError(
            f"{library} records no timeline: build it with Compiler.library(candidate, trace=True)"
        ) from None
    raw = c.create_string_buffer(_BUFFER.itemsize)
    if error := copy(raw, c.c_size_t(_BUFFER.itemsize)):
        raise TimelineError(f"the timeline of {library} cannot be read: CUDA error {error}")
    return raw.raw


def timeline(recorded: Mapping[int, bytes]) -> Trace:
    """The timelines of some ranks, by rank, as `read` returned them.

    GPUs' timers are not in step, so every rank's time begins when its first role does; ranks that
    enter a launch together do so within about a crossing. Their resolution is the driver's, often
    32 ns, at worst about 1 us. TimelineError if a part has another size than `read` returns.
    """
    slices: list[Slice] = []
    left_out, complete = 0, float("inf")
    for rank, raw in recorded.items():
        if len(raw) != _BUFFER.itemsize:
            raise TimelineError(f"rank {rank}: {len(raw)} bytes are no timeline")
        buffer = np.frombuffer(raw, _BUFFER)[0]
        parts = [(s, r) for s in range(SLOTS) for r in range(_ROLES) if buffer["seen"][s, r]]
        begin = min((int(buffer["records"][s, r, 0]["at"]) for s, r in parts), default=0)
        for slot, role in parts:
            seen = int(buffer["seen"][slot, role])
            records = buffer["records"][slot, role, : min(seen, MOST_RECORDS)]
            slices += _slices(records, rank, int(buffer["block"][slot]), ROLES[role], begin)
            if seen > MOST_RECORDS:
                left_out += seen - MOST_RECORDS
                complete = min(complete, (int(records[-1]["at"]) - begin) / 1e3)
    return Trace(tuple(slices), (), left_out, complete if left_out else 0.0)


def _slices(
    records: npt.NDArray[np.void], rank: int, block: int, role: str, begin: int
) -> Iterator[Slice]:
    """Work and waits in turn; a signal is a slice without length."""
    since = int(records[0]["at"])
    for record in records:
        at, what, detail = int(record["at"]), int(record["what"]), int(record["detail"])
        start, length = (since - begin) / 1e3, (at - since) / 1e3
        if what == _WAIT_ENDS:
            yield Slice(rank, block, role, _WAITS.get(detail, "wait"), start, length)
        elif what in (_WAIT_BEGINS, _ROLE_ENDS, _SIGNALS) and at > since:
            yield Slice(rank, block, role, "work", start, length)
        if what == _SIGNALS:
            yield Slice(rank, block, role, "signal", (at - begin) / 1e3, 0.0)
        since = at
