"""Jobs as workers leave them in the store, for tests of what is shown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agent.spec import JobSpec
from pk_runtime.candidate import Candidate
from sandbox.verdict import Status, Timing, Verdict
from store import Store
from store.leases import Claim

PROBLEM = "gemm_reducescatter"
TARGET = "sim:h200x4"
SOURCE = """#include <pk/pk.h>
PK_KERNEL(k, knob("stages", 3, {2, 3, 4}), knob("rotate", 0, {0, 1}));
"""
BASELINE_US = 1000.0
ROOFLINE_US = 250.0


def candidate(source: str = SOURCE, **knobs: int) -> Candidate:
    """A candidate that declares two knobs."""
    return Candidate("pk", {"kernel.cu": source}, knobs)


def verdict(of: Candidate, us: float | None, status: Status = "correct", **changes: Any) -> Verdict:
    """A verdict as the judge gives it; `us` None means that nothing was timed."""
    timing = Timing(
        shape="m8192n8192k8192",
        kind="simulated",
        candidate_us=us or 1.0,
        baseline_us=BASELINE_US,
        speedup=BASELINE_US / (us or 1.0),
        roofline_us=ROOFLINE_US,
        roofline_fraction=ROOFLINE_US / (us or 1.0),
        bottleneck="nvlink",
        detail={
            "bottleneck": {
                "name": "nvlink",
                "why": "nvlink is the busiest",
                "utilization": {"tensor": 0.4, "nvlink_out": 0.9},
            }
        },
    )
    given = Verdict(
        status=status,
        stage="done" if status == "correct" else "check",
        problem=PROBLEM,
        target=TARGET,
        language="pk",
        candidate=of.digest(),
        depth="quick",
        seed=7,
        evidence={"summary": f"{status}: the summary"},
        timings=(timing,) if us is not None else (),
        knobs={"stages": 3, "rotate": 0} | dict(of.knobs),
        isolation={"backend": "bubblewrap", "isolated": True},
        versions={"pkforge": "0"},
    )
    return replace(given, **changes)


def submit(store: Store, **changes: Any) -> str:
    """A queued job; returns its id."""
    spec = JobSpec(problem=PROBLEM, target=TARGET, **changes)
    with store.database.write() as tx:
        return tx.jobs.create("optimization", spec.to_json()).id


def claim(store: Store, job_id: str) -> Claim:
    """Take the job as a worker does."""
    with store.database.write() as tx:
        claimed = tx.leases.claim(job_id, "host:1:1", 90.0)
    assert claimed is not None
    return claimed


def propose(
    store: Store,
    job_id: str,
    what: Candidate,
    *,
    parent: int | None = None,
    hypothesis: str = "because",
    phase: str = "search",
) -> int:
    """Store an attempt; returns its number."""
    source = what.source_bytes()
    sha256 = store.artifacts.put(source)
    with store.database.write() as tx:
        tx.artifacts.record(sha256, kind="source", size=len(source))
        number = tx.attempts.propose(
            job_id,
            parent=parent,
            phase=phase,
            hypothesis=hypothesis,
            language=what.language,
            digest=what.digest(),
            source_sha256=sha256,
            knobs=what.knobs,
        ).number
        payload = {
            "number": number,
            "parent": parent,
            "phase": phase,
            "hypothesis": hypothesis,
            "knobs": dict(what.knobs),
        }
        tx.events.append(job_id, "attempt.proposed", payload)
    return number


def judge(store: Store, job_id: str, number: int, given: Verdict) -> None:
    """Store an attempt's verdict, and that it is the best when it is correct."""
    timing = given.timings[0] if given.timings else None
    us = None if timing is None else timing.candidate_us
    speedup = None if timing is None else timing.speedup
    kind = None if timing is None else timing.kind
    bottleneck = None if timing is None else timing.bottleneck
    with store.database.write() as tx:
        tx.attempts.judged(
            job_id,
            number,
            given.to_json(),
            objective_us=us,
            speedup=speedup,
            kind=kind,
            bottleneck=bottleneck,
        )
        payload = {
            "number": number,
            "status": given.status,
            "candidate_us": us,
            "kind": kind,
            "speedup": speedup,
            "bottleneck": bottleneck,
        }
        tx.events.append(job_id, "attempt.judged", payload)
        if given.correct:
            tx.jobs.set_best(job_id, number)
            tx.events.append(job_id, "best.updated", {"number": number, "speedup": speedup})


def finish(store: Store, claimed: Claim, bundle: bytes | None = b"a zip", **changes: Any) -> None:
    """End the job as succeeded, with a bundle, unless told otherwise."""
    values: dict[str, Any] = {"stop_reason": "exhausted", "detail": "The end.", "best_number": 2}
    sha256 = None if bundle is None else store.artifacts.put(bundle)
    with store.database.write() as tx:
        if bundle is not None and sha256 is not None:
            tx.artifacts.record(sha256, kind="bundle", size=len(bundle))
        state = changes.pop("state", "succeeded")
        tx.leases.finish(claimed, state, bundle_sha256=sha256, **(values | changes))


def succeeded(store: Store, **changes: Any) -> str:
    """A job that ended well after three attempts: a slow one, a better one, a broken one.

    `changes` are made to the verdict of the better one.
    """
    job_id = submit(store)
    claimed = claim(store, job_id)
    first, second = candidate(), candidate(stages=4)
    broken = candidate(SOURCE + "oops\n", stages=4)
    judge(store, job_id, propose(store, job_id, first), verdict(first, 900.0))
    judge(
        store, job_id, propose(store, job_id, second, parent=1), verdict(second, 500.0, **changes)
    )
    judge(
        store,
        job_id,
        propose(store, job_id, broken, parent=2),
        verdict(broken, None, "build_failed", stage="build"),
    )
    finish(store, claimed)
    return job_id
