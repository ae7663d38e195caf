"""The bundle of a job's kernel: it says what was judged and how it came about."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from agent.records import AttemptRecord
from pk_runtime.bundle import parse_bundle
from store import Store
from tests.workers import examples
from workers.bundling import bundle_of, lineage

AT = datetime(2026, 1, 1, tzinfo=UTC)


def attempt(number: int, parent: int | None, text: str, phase: str = "search") -> AttemptRecord:
    candidate = examples.kernel(text)
    depth = "full" if phase == "confirm" else "quick"
    return AttemptRecord(
        number=number,
        created_at=AT,
        candidate=candidate,
        hypothesis=f"idea {number}",
        parent=parent,
        phase="confirm" if phase == "confirm" else "search",
        verdict=examples.verdict(candidate, depth),
    )


ATTEMPTS = [
    attempt(1, None, "us=500"),
    attempt(2, 1, "us=900"),
    attempt(3, 1, "us=400"),
    attempt(4, 3, "us=400", "confirm"),
]


def test_it_holds_the_verdict_and_the_job(sqlite_store: Store) -> None:
    job = examples.job(sqlite_store, examples.submit(sqlite_store, "us=500", shape="default"))
    bundle = parse_bundle(bundle_of(job, ATTEMPTS[3], ATTEMPTS, None))
    assert bundle.candidate == examples.kernel("us=400")
    manifest = bundle.manifest
    assert (manifest["problem"], manifest["target"]) == (examples.PROBLEM, examples.TARGET)
    assert manifest["verdict"]["depth"] == "full"
    assert [(t["shape"], t["kind"]) for t in manifest["timings"]] == [("default", "simulated")]
    assert manifest["job"] == {
        "id": job.id,
        "policy": "scripted",
        "shape": "default",
        "attempt": 4,
        "attempts": 4,
        "created_at": job.created_at.isoformat(),
    }
    assert "interface" not in manifest


def test_its_lineage_leads_from_the_root_to_the_kernel() -> None:
    line = lineage(ATTEMPTS[3], ATTEMPTS)
    assert [(step["number"], step["parent"]) for step in line] == [(1, None), (3, 1), (4, 3)]
    assert [step["candidate_us"] for step in line] == pytest.approx([500.0, 400.0, 400.0])
    assert line[1]["hypothesis"] == "idea 3"
    assert {step["status"] for step in line} == {"correct"}


def test_an_unjudged_attempt_has_no_bundle(sqlite_store: Store) -> None:
    job = examples.job(sqlite_store, examples.submit(sqlite_store, "us=500"))
    pending = replace(ATTEMPTS[0], verdict=None)
    with pytest.raises(ValueError, match=r"attempt 1 of job_.* is not judged yet"):
        bundle_of(job, pending, [pending], None)
