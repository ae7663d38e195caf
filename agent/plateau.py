"""When to call a plateau.

Steps are search attempts from the first correct one on; attempts before it are about correctness,
and infra_error attempts are nobody's. b(n) is the best speedup after step n. A window of WINDOW
steps is flat if log b gained less than max(MIN_LOG_GAIN, NOISE_FACTOR x sigma) in it, where sigma
is the relative noise of one timing of that kind. A gain opens a new window and forgives the flat
ones before it; FLAT_LIMIT flat windows in a row end the search.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from agent.ranking import judged_once
from agent.records import AttemptRecord
from sandbox.verdict import TimingKind

WINDOW = 6
MIN_LOG_GAIN = 0.02
NOISE_FACTOR = 2.0
SIGMA: Mapping[TimingKind | None, float] = {
    "simulated": 0.0,
    "uncalibrated": 0.0,
    "measured": 0.02,
}
FLAT_LIMIT = 3


def flat_windows(attempts: Sequence[AttemptRecord]) -> int:
    """Return how many windows in a row have been flat, 0 to FLAT_LIMIT."""
    flat, window_start, opened_at = 0, 0, 0.0
    for step, best in enumerate(_best_after_each_step(attempts)):
        if step == 0 or math.log(best.speedup or 1.0) - opened_at >= _threshold(best):
            flat, window_start, opened_at = 0, step, math.log(best.speedup or 1.0)
        elif step - window_start >= WINDOW:
            flat, window_start, opened_at = flat + 1, step, math.log(best.speedup or 1.0)
        if flat == FLAT_LIMIT:
            break
    return flat


def _threshold(best: AttemptRecord) -> float:
    return max(MIN_LOG_GAIN, NOISE_FACTOR * SIGMA.get(best.kind, 0.0))


def _best_after_each_step(attempts: Sequence[AttemptRecord]) -> list[AttemptRecord]:
    confirmed = judged_once(attempts, "confirm")
    best: AttemptRecord | None = None
    steps: list[AttemptRecord] = []
    for attempt in attempts:
        if attempt.phase != "search" or attempt.status in (None, "infra_error"):
            continue
        verdict = confirmed.get(attempt.candidate.digest())
        standing = attempt.correct and (verdict is None or verdict.correct)
        if standing and (best is None or (attempt.speedup or 0.0) > (best.speedup or 0.0)):
            best = attempt
        if best is not None:
            steps.append(best)
    return steps
