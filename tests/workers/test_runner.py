"""Running a job in this process, undisturbed. How it is disturbed: `test_main.py`."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest

from pk_runtime.bundle import parse_bundle
from store import Settings, Store
from store.models import Job
from tests.workers import examples
from workers.evaluation import EvaluationSpec
from workers.parts import JobCannotRunError, Parts
from workers.runner import End, run_job


def run(settings: Settings, job_id: str) -> End | None:
    return run_job(job_id, settings, open_parts=examples.example_parts)


def evaluate(store: Store, text: str, **changes: object) -> str:
    spec = EvaluationSpec(examples.PROBLEM, examples.TARGET, examples.kernel(text))
    with store.database.write() as tx:
        return tx.jobs.create("evaluation", spec.to_json() | changes).id


def test_a_job_ends_with_its_best_verified_kernel(settings: Settings, store: Store) -> None:
    job_id = examples.submit(store, "us=500", "us=300", "status=race", "us=400")
    assert run(settings, job_id) == "succeeded"
    job = examples.job(store, job_id)
    assert (job.state, job.stop_reason, job.best_number) == ("succeeded", "exhausted", 5)
    assert (job.lease_owner, job.error) == (None, None)
    assert job.ran_s > 0
    assert job.bundle_sha256 is not None
    bundle = parse_bundle(store.artifacts.get(job.bundle_sha256))
    assert bundle.candidate == examples.kernel("us=300")
    assert [step["number"] for step in bundle.manifest["lineage"]] == [1, 2, 5]
    assert bundle.manifest["verdict"]["depth"] == "full"
    assert examples.event_types(store, job_id)[-1] == "job.finished"


def test_a_job_that_is_not_queued_is_left_alone(settings: Settings, store: Store) -> None:
    job_id = examples.submit(store, "us=500")
    assert run(settings, job_id) == "succeeded"
    before = examples.events(store, job_id)
    assert run(settings, job_id) is None
    assert run(settings, "job_unknown") is None
    assert examples.events(store, job_id) == before


def test_a_job_without_a_correct_kernel_fails_and_says_so(settings: Settings, store: Store) -> None:
    job_id = examples.submit(store, "status=deadlock", "status=wrong_output")
    assert run(settings, job_id) == "failed"
    job = examples.job(store, job_id)
    assert (job.stop_reason, job.best_number, job.bundle_sha256) == ("exhausted", None, None)
    assert job.error is not None
    assert job.error["reason"] == "no_kernel"


@pytest.mark.parametrize(("status", "state"), [("correct", "succeeded"), ("deadlock", "succeeded")])
def test_an_evaluation_ends_with_its_verdict(
    settings: Settings, store: Store, status: str, state: str
) -> None:
    job_id = evaluate(store, f"us=400 status={status}")
    assert run(settings, job_id) == state
    assert examples.attempts(store, job_id) == [(1, "confirm", status)]
    job = examples.job(store, job_id)
    assert (job.state, job.best_number, job.bundle_sha256) == (state, 1, None)
    assert examples.judgements(settings) == [f"full us=400 status={status}"]


def test_an_evaluation_that_meets_infrastructure_trouble_fails(
    settings: Settings, store: Store
) -> None:
    job_id = evaluate(store, "status=infra_error")
    assert run(settings, job_id) == "failed"
    job = examples.job(store, job_id)
    assert job.error is not None
    assert job.error["reason"] == "infra_error"
    assert len(examples.judgements(settings)) == 3


def test_a_resumed_evaluation_judges_once(settings: Settings, store: Store) -> None:
    job_id = evaluate(store, "us=400")
    assert run(settings, job_id) == "succeeded"
    with store.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE job SET state = 'queued', finished_at = NULL")
    assert run(settings, job_id) == "succeeded"
    assert len(examples.judgements(settings)) == 1


@pytest.mark.parametrize(
    ("changes", "reason", "text"),
    [
        ({"policy": "astrology"}, "invalid_spec", "unknown policy"),
        ({"budget": {"attempts": 0}}, "invalid_spec", "budget.attempts"),
    ],
)
def test_a_job_that_makes_no_sense_fails_at_once(
    settings: Settings, store: Store, changes: dict[str, object], reason: str, text: str
) -> None:
    with store.database.write() as tx:
        spec = examples.spec("us=500").to_json() | changes
        job_id = tx.jobs.create("optimization", spec).id
    assert run(settings, job_id) == "failed"
    error = examples.job(store, job_id).error
    assert error is not None
    assert error["reason"] == reason
    assert text in error["summary"]


def test_a_job_that_cannot_run_here_says_why(settings: Settings, store: Store) -> None:
    def nothing_works(settings: Settings, store: Store, job: Job) -> AbstractContextManager[Parts]:
        raise JobCannotRunError("isolation_unavailable", "install bubblewrap")

    job_id = examples.submit(store, "us=500")
    assert run_job(job_id, settings, open_parts=nothing_works) == "failed"
    job = examples.job(store, job_id)
    assert job.error == {"reason": "isolation_unavailable", "summary": "install bubblewrap"}
    assert job.stop_reason == "infra"


def test_a_bug_ends_the_job_with_its_name(settings: Settings, store: Store) -> None:
    def broken(settings: Settings, store: Store, job: Job) -> AbstractContextManager[Parts]:
        raise ZeroDivisionError("in the middle of it")

    job_id = examples.submit(store, "us=500")
    assert run_job(job_id, settings, open_parts=broken) == "failed"
    error = examples.job(store, job_id).error
    assert error is not None
    assert (error["reason"], error["summary"]) == (
        "internal_error",
        "ZeroDivisionError: in the middle of it",
    )
