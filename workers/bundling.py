"""The bundle of a job's kernel: the candidate with its verdict and how it came about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.records import AttemptRecord
from pk_runtime.bundle import bundle_bytes
from store.models import Job


def bundle_of(
    job: Job,
    best: AttemptRecord,
    attempts: Sequence[AttemptRecord],
    interface: Mapping[str, Any] | None,
) -> bytes:
    """The bundle of a judged attempt of a job. Raises pk_runtime.bundle.BundleError."""
    if best.verdict is None:
        raise ValueError(f"attempt {best.number} of {job.id} is not judged yet")
    verdict = best.verdict.to_json()
    manifest: dict[str, Any] = {
        "problem": job.problem,
        "target": job.target,
        "verdict": verdict,
        "lineage": lineage(best, attempts),
        "job": {
            "id": job.id,
            "policy": job.policy,
            "shape": job.spec.get("shape"),
            "attempt": best.number,
            "attempts": len(attempts),
            "created_at": job.created_at.isoformat(),
        },
    }
    if interface is not None:
        manifest["interface"] = dict(interface)
    return bundle_bytes(best.candidate, manifest)


def lineage(best: AttemptRecord, attempts: Sequence[AttemptRecord]) -> list[dict[str, Any]]:
    """The attempts from the root of the tree down to `best`: what was tried, and what it gave."""
    by_number = {attempt.number: attempt for attempt in attempts}
    line = [best]
    while line[-1].parent is not None:
        line.append(by_number[line[-1].parent])
    return [
        {
            "number": attempt.number,
            "parent": attempt.parent,
            "phase": attempt.phase,
            "candidate": attempt.candidate.digest(),
            "knobs": dict(attempt.candidate.knobs),
            "hypothesis": attempt.hypothesis,
            "status": attempt.status,
            "candidate_us": attempt.objective_us,
            "speedup": attempt.speedup,
            "kind": attempt.kind,
        }
        for attempt in reversed(line)
    ]
