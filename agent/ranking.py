"""Which attempts lead: pure functions of a job's history."""

from __future__ import annotations

from collections.abc import Sequence

from agent.records import AttemptRecord


def judged_once(attempts: Sequence[AttemptRecord], phase: str) -> dict[str, AttemptRecord]:
    """Return by candidate digest the last attempt of a phase that really judged it.

    An attempt that ended in infra_error says nothing about its candidate and is left out.
    """
    return {
        attempt.candidate.digest(): attempt
        for attempt in attempts
        if attempt.phase == phase and attempt.status not in (None, "infra_error")
    }


def leaders(attempts: Sequence[AttemptRecord]) -> list[AttemptRecord]:
    """Return the correct search attempts, fastest first, one per candidate.

    A candidate that a confirm attempt found not correct is left out.
    """
    confirmed = judged_once(attempts, "confirm")
    standing = [
        attempt
        for digest, attempt in judged_once(attempts, "search").items()
        if attempt.correct and (digest not in confirmed or confirmed[digest].correct)
    ]
    return sorted(standing, key=lambda attempt: (-_speedup(attempt), attempt.number))


def best_verified(attempts: Sequence[AttemptRecord]) -> AttemptRecord | None:
    """Return the fastest attempt with a full correct verdict: the only possible result of a job."""
    verified = [attempt for attempt in attempts if attempt.verified]
    return max(verified, key=lambda attempt: (_speedup(attempt), -attempt.number), default=None)


def _speedup(attempt: AttemptRecord) -> float:
    return attempt.speedup or 0.0
