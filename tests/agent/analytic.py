"""An analytic judge for tests of the search itself: a cost model instead of the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent.records import Depth
from pk_runtime.candidate import Candidate, resolved_knobs
from sandbox.verdict import Status, Timing, Verdict

BASELINE_US = 1000.0

SOURCE = """#include <pk/pk.h>
// {note}
PK_KERNEL(k, knob("stages", 3, {{2, 3, 4, 5, 6}}), knob("super_m", 1, {{1, 2, 4, 8, 16}}),
          knob("comm_sms", 4, {{4, 8, 16, 20, 24, 32}}), knob("rotate", 0, {{0, 1}}));
"""

Time = Callable[[Candidate], float]


def kernel(note: str = "", **knobs: int) -> Candidate:
    return Candidate("pk", {"kernel.cu": SOURCE.format(note=note)}, knobs)


def valley_us(candidate: Candidate) -> float:
    """Least at stages=5, super_m=8, comm_sms=20, rotate=1 (400 us); 1000 us or so elsewhere."""
    knobs = resolved_knobs(candidate)
    return (
        400.0
        + 60.0 * abs(knobs["stages"] - 5)
        + 25.0 * abs(knobs["super_m"] - 8)
        + 9.0 * abs(knobs["comm_sms"] - 20)
        + (0.0 if knobs["rotate"] else 120.0)
    )


def verdict(
    candidate: Candidate,
    depth: Depth,
    us: float,
    status: Status = "correct",
    summary: str = "",
) -> Verdict:
    timing = Timing(
        shape="m8192",
        kind="simulated",
        candidate_us=us,
        baseline_us=BASELINE_US,
        speedup=BASELINE_US / us,
        roofline_us=300.0,
        roofline_fraction=300.0 / us,
        bottleneck="nvlink",
    )
    return Verdict(
        status=status,
        stage="done" if status == "correct" else "check",
        problem="gemm_reducescatter",
        target="sim:h200x4",
        language="pk",
        candidate=candidate.digest(),
        depth=depth,
        seed=1,
        evidence={"summary": summary or f"judged {status}"},
        timings=(timing,) if status == "correct" else (),
        knobs=resolved_knobs(candidate),
    )


class Judge:
    """Counts what it judges. `statuses` overrides the status by (note of the source, depth)."""

    def __init__(
        self, time: Time = valley_us, statuses: Mapping[tuple[str, Depth], Status] | None = None
    ) -> None:
        self.time = time
        self.statuses = dict(statuses or {})
        self.seen: list[tuple[str, Depth]] = []
        self.incumbents: list[Candidate | None] = []

    def __call__(
        self, candidate: Candidate, depth: Depth, incumbent: Candidate | None = None
    ) -> Verdict:
        self.seen.append((candidate.digest(), depth))
        self.incumbents.append(incumbent)
        note = candidate.source.splitlines()[1].removeprefix("// ")
        status = self.statuses.get((note, depth), "correct")
        return verdict(candidate, depth, self.time(candidate), status)
