"""Histories for tests: attempts with the given speedups or statuses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import get_args

from agent.records import DEPTH_OF, AttemptRecord, Phase
from pk_runtime.candidate import Candidate
from sandbox.verdict import Status
from tests.agent.analytic import BASELINE_US, kernel, verdict


def attempt(
    number: int,
    result: float | str,
    *,
    candidate: Candidate | None = None,
    phase: Phase = "search",
    parent: int | None = None,
) -> AttemptRecord:
    """Make a judged attempt: `result` is a speedup or a status that is not correct."""
    own = candidate or kernel(f"k{number}")
    depth = DEPTH_OF[phase]
    status: Status = "correct"
    if isinstance(result, str):
        (status,) = (known for known in get_args(Status) if known == result)
    us = BASELINE_US / result if isinstance(result, int | float) else 1.0
    return AttemptRecord(
        number=number,
        created_at=datetime.now(UTC),
        candidate=own,
        hypothesis=f"idea {number}",
        parent=parent,
        phase=phase,
        verdict=verdict(own, depth, us, status),
    )


def searched(*results: float | str) -> list[AttemptRecord]:
    """Make search attempts 1, 2, ... with these results."""
    return [attempt(number, result) for number, result in enumerate(results, start=1)]
