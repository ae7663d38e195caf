"""The kernels a job starts from."""

from __future__ import annotations

from agent.spec import JobSpec, SpecError
from pk_runtime.candidate import Candidate
from pk_runtime.kernels import shipped


def openings(spec: JobSpec) -> tuple[Candidate, ...]:
    """Return `spec.start_from` alone, else the kernels shipped for the problem (maybe none)."""
    return (spec.start_from,) if spec.start_from is not None else shipped(spec.problem)


def required_openings(spec: JobSpec) -> tuple[Candidate, ...]:
    """Return the openings; raise SpecError if there are none."""
    found = openings(spec)
    if not found:
        raise SpecError(
            f"policy {spec.policy!r} needs a kernel to start from, and none is shipped for problem "
            f"{spec.problem!r}: give start_from, or use policy 'llm:<model>'"
        )
    return found
