"""Jobs as users see them."""

from __future__ import annotations

import pytest

from store import Store
from store.errors import AlreadyCancelledError, AlreadyFinishedError, NotFoundError
from tests.store import examples


def test_a_new_job_is_queued_with_its_event(store: Store) -> None:
    job = examples.submit(store, shape="default")
    assert job.id.startswith("job_")
    stored = examples.job(store, job.id)
    assert (stored.state, stored.problem, stored.target, stored.policy) == (
        "queued",
        "gemm_reducescatter",
        "sim:h200x4",
        "tuner",
    )
    assert stored.spec == examples.SPEC | {"shape": "default"}
    assert (stored.fence, stored.runs, stored.last_seq) == (0, 0, 1)
    assert examples.events(store, job.id) == ["job.queued"]


def test_evaluations_have_their_own_ids_and_pages(store: Store) -> None:
    examples.submit(store)
    with store.database.write() as tx:
        evaluation = tx.jobs.create("evaluation", {"problem": "allreduce", "target": "sim:h200x4"})
    assert evaluation.id.startswith("evl_")
    with store.database.read() as tx:
        assert [job.id for job in tx.jobs.page("evaluation")] == [evaluation.id]
        assert tx.jobs.get(evaluation.id, "evaluation").policy is None
        with pytest.raises(NotFoundError, match="no optimization"):
            tx.jobs.get(evaluation.id, "optimization")


def test_pages_are_newest_first_and_do_not_shift(store: Store) -> None:
    ids = [examples.submit(store).id for _ in range(5)]
    with store.database.read() as tx:
        first = tx.jobs.page("optimization", limit=2)
    newer = examples.submit(store).id
    with store.database.read() as tx:
        rest = tx.jobs.page("optimization", limit=10, before=first[-1].id)
    assert [job.id for job in [*first, *rest]] == ids[::-1]
    assert newer not in [job.id for job in rest]


def test_pages_can_be_narrowed(store: Store) -> None:
    running = examples.started(store).job_id
    other = examples.submit(store, problem="allreduce").id
    with store.database.read() as tx:
        assert [job.id for job in tx.jobs.page("optimization", state="running")] == [running]
        assert [job.id for job in tx.jobs.page("optimization", problem="allreduce")] == [other]
        assert tx.jobs.counts() == {"queued": 1, "running": 1}


def test_summaries_show_counts_costs_and_the_best_attempt(store: Store) -> None:
    claim, empty = examples.started(store), examples.submit(store)
    for candidate_us in (500.0, 400.0):
        number = examples.propose(store, claim.job_id).number
        examples.judge(store, claim.job_id, number, candidate_us)
    with store.database.write() as tx:
        tx.jobs.set_best(claim.job_id, 2)
        tx.llm_calls.reserve(claim.job_id, model="m", usd=0.5, limit_usd=1)
    with store.database.read() as tx:
        first, second = tx.jobs.summaries([tx.jobs.get(claim.job_id), tx.jobs.get(empty.id)])
    assert (first.attempts, first.spent_usd) == (2, 0.5)
    assert first.best is not None
    assert first.best.objective_us == 400.0
    assert (second.attempts, second.spent_usd, second.best) == (0, 0.0, None)


def test_the_oldest_queued_jobs_come_first(store: Store) -> None:
    ids = [examples.submit(store).id for _ in range(4)]
    examples.claim(store, ids[0])
    with store.database.read() as tx:
        assert tx.jobs.queued(2) == ids[1:3]
        assert tx.jobs.queued(9, excluding=[ids[1]]) == ids[2:]


def test_cancelling_a_queued_job_ends_it(store: Store) -> None:
    job = examples.submit(store)
    with store.database.write() as tx:
        cancelled = tx.jobs.request_cancel(job.id)
    assert (cancelled.state, cancelled.stop_reason) == ("cancelled", "cancelled")
    assert cancelled.finished_at is not None
    assert examples.events(store, job.id) == ["job.queued", "cancel.requested", "job.finished"]
    with store.database.write() as tx:
        assert tx.leases.claim(job.id, examples.OWNER, 90) is None


def test_cancelling_a_running_job_is_a_request(store: Store) -> None:
    claim = examples.started(store)
    with store.database.write() as tx:
        asked = tx.jobs.request_cancel(claim.job_id)
    assert (asked.state, asked.finished) == ("running", False)
    assert asked.cancel_requested_at is not None
    with store.database.write() as tx:
        assert tx.leases.renew(claim, 90, 0)


def test_cancelling_twice_or_too_late_is_refused(store: Store) -> None:
    claim, queued = examples.started(store), examples.submit(store)
    for job_id in (claim.job_id, queued.id):
        with store.database.write() as tx:
            tx.jobs.request_cancel(job_id)
        with store.database.write() as tx, pytest.raises(AlreadyCancelledError, match=job_id):
            tx.jobs.request_cancel(job_id)
    finished = examples.started(store)
    with store.database.write() as tx:
        tx.leases.finish(finished, "succeeded", stop_reason="exhausted")
    with store.database.write() as tx, pytest.raises(AlreadyFinishedError, match="succeeded"):
        tx.jobs.request_cancel(finished.job_id)
    with store.database.write() as tx, pytest.raises(NotFoundError):
        tx.jobs.request_cancel("job_x")
    assert examples.events(store, finished.job_id)[-1] == "job.finished"
