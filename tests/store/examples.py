"""Rows for the tests of the store, as workers and the API write them."""

from __future__ import annotations

from typing import Any

from store import Store
from store.leases import Claim
from store.models import Attempt, Job

OWNER = "host:1:1"
LEASE_S = 90.0
SPEC = {"problem": "gemm_reducescatter", "target": "sim:h200x4", "policy": "tuner"}


def submit(store: Store, **spec: Any) -> Job:
    """A queued job."""
    with store.database.write() as tx:
        return tx.jobs.create("optimization", SPEC | spec)


def claim(store: Store, job_id: str, owner: str = OWNER, lease_s: float = LEASE_S) -> Claim:
    """The claim of a queued job."""
    with store.database.write() as tx:
        claimed = tx.leases.claim(job_id, owner, lease_s)
    assert claimed is not None
    return claimed


def started(store: Store) -> Claim:
    """The claim of a new job."""
    return claim(store, submit(store).id)


def propose(store: Store, job_id: str, **changes: Any) -> Attempt:
    """The next attempt of a job, unjudged."""
    source = b'{"kernel.cu": "..."}'
    sha256 = store.artifacts.put(source)
    values: dict[str, Any] = {
        "parent": None,
        "phase": "search",
        "hypothesis": "more stages hide the latency",
        "language": "pk",
        "digest": "d" * 64,
        "source_sha256": sha256,
        "knobs": {"stages": 4},
    }
    with store.database.write() as tx:
        tx.artifacts.record(sha256, kind="source", size=len(source))
        return tx.attempts.propose(job_id, **(values | changes))


def verdict(status: str = "correct", candidate_us: float = 500.0) -> dict[str, Any]:
    """A verdict as the judge writes it."""
    timing = {
        "shape": "default",
        "kind": "simulated",
        "candidate_us": candidate_us,
        "baseline_us": 1000.0,
        "speedup": 1000.0 / candidate_us,
        "roofline_us": 250.0,
        "roofline_fraction": 250.0 / candidate_us,
        "bottleneck": "nvlink",
        "detail": {"utilization": {"nvlink_out": 0.9}},
    }
    return {
        "status": status,
        "stage": "bench",
        "depth": "quick",
        "timings": [timing] if status == "correct" else [],
        "evidence": {"summary": "all outputs agree"},
    }


def judge(store: Store, job_id: str, number: int, candidate_us: float = 500.0) -> Attempt:
    """Store a correct verdict for an attempt."""
    with store.database.write() as tx:
        return tx.attempts.judged(
            job_id,
            number,
            verdict(candidate_us=candidate_us),
            objective_us=candidate_us,
            speedup=1000.0 / candidate_us,
            kind="simulated",
            bottleneck="nvlink",
        )


def events(store: Store, job_id: str) -> list[str]:
    """The types of a job's events, in order; fails if their numbers have gaps."""
    with store.database.read() as tx:
        rows = tx.events.after(job_id, limit=10_000)
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    return [row.type for row in rows]


def job(store: Store, job_id: str) -> Job:
    """A job as it is stored now."""
    with store.database.read() as tx:
        return tx.jobs.get(job_id)
