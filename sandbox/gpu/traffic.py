"""What the GPUs themselves say about bytes over NVLink, where they say it.

A kernel that moves fewer bytes than the operator must move has not done the work, however it
deceives the clock or the comparison. Counters are only believed after they have accounted for the
baseline's own bytes in the same rounds: a driver may not tell, or tell late.
"""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sandbox.gpu.pool import GpuPool

# Counters are read beside the launches, not in them.
_SLACK = 0.95

Totals = list[tuple[int, int]]


def totals(pool: GpuPool) -> Totals | None:
    """Bytes sent and received by every GPU so far; None unless all of them tell."""
    found: Totals = []
    for body in pool.ask("traffic"):
        pair = body.get("nvlink")
        if not isinstance(pair, list) or len(pair) != 2:
            return None
        found.append((int(pair[0]), int(pair[1])))
    return found


def busiest(before: Totals, after: Totals, launches: int) -> float:
    """Bytes that the busiest GPU sent or received per launch, whichever is more."""
    return max(
        (new - old) / launches
        for then, now in zip(before, after, strict=True)
        for old, new in zip(then, now, strict=True)
    )


@dataclass
class Counted:
    """Bytes per launch of one contender, a figure for each round."""

    pool: GpuPool
    rounds: list[float] = field(default_factory=list)

    @contextmanager
    def during(self, launches: int) -> Iterator[None]:
        """Counts what so many launches in the block move."""
        before = totals(self.pool)
        yield
        after = totals(self.pool) if before is not None else None
        if before is not None and after is not None:
            self.rounds.append(busiest(before, after, launches))

    @property
    def median(self) -> float | None:
        """Bytes per launch; None if nobody counted."""
        return statistics.median(self.rounds) if self.rounds else None


def evidence(candidate: Counted, baseline: Counted, needed: float) -> dict[str, Any]:
    """What was counted, in bytes per launch of the busiest GPU, and whether it counts."""
    mine, theirs = candidate.median, baseline.median
    if mine is None or theirs is None:
        return {"counted": False, "why": "the driver does not tell"}
    if theirs < _SLACK * needed:
        why = f"the counters miss the baseline's own bytes: {theirs:.4g} of {needed:.4g}"
        return {"counted": False, "why": why}
    return {"counted": True, "candidate": mine, "baseline": theirs, "needed": needed}


def too_little(found: dict[str, Any]) -> str | None:
    """What `evidence` shows to be missing, in words; None if nothing is, or nobody counted."""
    if not found["counted"] or found["candidate"] >= _SLACK * found["needed"]:
        return None
    return (
        f"By the GPUs' own counters NVLink carried {found['candidate']:.4g} bytes per launch on "
        f"the busiest GPU, and the operator must move {found['needed']:.4g} (PyTorch + NCCL moved "
        f"{found['baseline']:.4g}): the kernel leaves out communication when it is timed"
    )
