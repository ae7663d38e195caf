"""Whether a verdict that is kept still counts, and how it is reached anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pk_runtime.target import TargetError, parse_target
from problems.errors import UnknownProblem
from problems.registry import get
from sandbox.replay import void_because
from sandbox.versions import deciding
from store.models import Job


def void_reasons(job: Job, verdict: Mapping[str, Any]) -> list[str]:
    """Why a job's verdict no longer counts; [] while it does.

    An added problem is its file and never changes, so only judge and machine count for one.
    """
    try:
        target = parse_target(job.target)
    except TargetError:
        return [f"the target {job.target} is no longer known"]
    try:
        now = deciding(None if job.problem_id else get(job.problem), target)
    except UnknownProblem:
        return [f"the problem {job.problem} is no longer in the catalogue"]
    return list(void_because(verdict.get("versions") or {}, now))
