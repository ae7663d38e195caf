"""Leases: one owner at a time, no write from a former one, nothing lost when an owner dies."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from store import Settings, Store
from store.errors import LeaseLostError
from store.leases import Claim, Held, Wakeup
from tests.store import examples, racing


def held(claim: Claim) -> Held:
    return Held(claim.job_id, claim.fence, claim.owner, examples.SPEC["target"])


def taken_over(store: Store) -> tuple[Claim, Claim]:
    """A claim whose worker went silent, and the claim of its successor."""
    job = examples.submit(store)
    zombie = examples.claim(store, job.id, "host:1:1", lease_s=-1)
    with store.database.write() as tx:
        (silent,) = tx.leases.expired()
        assert tx.leases.reclaim(silent, 3, "lease expired") == "queued"
    return zombie, examples.claim(store, job.id, "host:2:2")


def test_only_the_first_claim_succeeds(store: Store) -> None:
    job = examples.submit(store)
    claim = examples.claim(store, job.id)
    assert (claim.job_id, claim.fence) == (job.id, 1)
    with store.database.write() as tx:
        assert tx.leases.claim(job.id, "host:2:2", 90) is None
        assert tx.leases.claim("job_x", "host:2:2", 90) is None
    stored = examples.job(store, job.id)
    assert (stored.state, stored.runs, stored.lease_owner) == ("running", 1, examples.OWNER)
    assert stored.started_at is not None


@pytest.mark.slow
def test_processes_that_race_never_claim_a_job_twice(settings: Settings, store: Store) -> None:
    ids = [examples.submit(store).id for _ in range(60)]
    owners = [f"host:{number}:0" for number in range(4)]
    got = racing.in_processes(racing.claim_all, [(settings, owner, ids) for owner in owners])
    assert sorted(itertools.chain(*got)) == ids
    with store.database.read() as tx:
        jobs = tx.jobs.page("optimization", limit=100)
    assert {job.fence for job in jobs} == {1}
    assert Counter(job.lease_owner for job in jobs) == Counter(
        {owner: len(claimed) for owner, claimed in zip(owners, got, strict=True) if claimed}
    )
    assert all(
        examples.events(store, job_id) == ["job.queued", "job.started"] for job_id in ids[:5]
    )


def test_renewing_extends_the_lease_and_counts_the_work(store: Store) -> None:
    claim = examples.started(store)
    before = examples.job(store, claim.job_id).lease_until
    with store.database.write() as tx:
        assert not tx.leases.renew(claim, 900, 1.5)
        assert not tx.leases.renew(claim, 900, 1.0)
    after = examples.job(store, claim.job_id)
    assert before is not None
    assert after.lease_until is not None
    assert after.lease_until > before
    assert after.ran_s == 2.5


def test_a_successor_resumes_with_a_new_fence(store: Store) -> None:
    zombie, successor = taken_over(store)
    assert successor.fence == zombie.fence + 1
    assert examples.events(store, zombie.job_id) == [
        "job.queued",
        "job.started",
        "job.queued",
        "job.resumed",
    ]


def test_no_write_of_a_former_owner_succeeds(store: Store) -> None:
    zombie, successor = taken_over(store)
    before = examples.events(store, zombie.job_id)
    for owner in (zombie, Claim(zombie.job_id, successor.fence + 1, "host:3:3")):
        with store.database.write() as tx:
            with pytest.raises(LeaseLostError, match="does not own"):
                tx.leases.hold(owner)
            with pytest.raises(LeaseLostError):
                tx.leases.renew(owner, 90, 1)
            with pytest.raises(LeaseLostError):
                tx.leases.progressed(owner)
            with pytest.raises(LeaseLostError):
                tx.leases.cancel_requested(owner)
            with pytest.raises(LeaseLostError):
                tx.leases.hand_back(owner, 1, "drained")
            with pytest.raises(LeaseLostError):
                tx.leases.finish(owner, "failed", stop_reason="infra")
    with store.database.write() as tx:
        tx.leases.hold(successor)
    assert examples.events(store, zombie.job_id) == before
    assert examples.job(store, zombie.job_id).ran_s == 0


def test_a_former_owner_has_no_rights_while_the_job_waits(store: Store) -> None:
    claim = examples.started(store)
    with store.database.write() as tx:
        tx.leases.hand_back(claim, 3.0, "drained")
    with store.database.write() as tx, pytest.raises(LeaseLostError):
        tx.leases.hold(claim)


def test_handing_back_costs_the_job_nothing(store: Store) -> None:
    job = examples.submit(store)
    for run in range(1, 6):
        claim = examples.claim(store, job.id)
        with store.database.write() as tx:
            tx.leases.hand_back(claim, 2.0, "drained")
        stored = examples.job(store, job.id)
        assert (stored.state, stored.crashes, stored.runs) == ("queued", 0, run)
    assert stored.ran_s == 10.0
    assert stored.lease_owner is None


def test_finishing_releases_the_job_and_tells(store: Store) -> None:
    claim = examples.started(store)
    with store.database.write() as tx:
        tx.leases.finish(
            claim, "succeeded", stop_reason="exhausted", detail="tried all", best_number=3, ran_s=4
        )
    stored = examples.job(store, claim.job_id)
    assert (stored.state, stored.stop_reason, stored.best_number) == ("succeeded", "exhausted", 3)
    assert (stored.lease_owner, stored.lease_until, stored.ran_s) == (None, None, 4.0)
    with store.database.read() as tx:
        last = tx.events.after(claim.job_id)[-1]
    assert last.payload == {
        "status": "succeeded",
        "stop_reason": "exhausted",
        "best": 3,
        "detail": "tried all",
    }


def test_only_leases_that_ran_out_are_expired(store: Store) -> None:
    examples.started(store)
    silent = examples.claim(store, examples.submit(store).id, lease_s=-1)
    with store.database.read() as tx:
        assert tx.leases.expired() == [held(silent)]


def test_leases_can_be_found_by_the_host_of_their_owner(store: Store) -> None:
    here = examples.claim(store, examples.submit(store).id, "gpu_1:10:5")
    examples.claim(store, examples.submit(store).id, "gpu_10:10:5")
    examples.claim(store, examples.submit(store).id, "gpux1:10:5")
    with store.database.read() as tx:
        assert [lease.job_id for lease in tx.leases.owned_on("gpu_1")] == [here.job_id]


def test_a_job_that_kills_its_workers_fails(store: Store) -> None:
    job = examples.submit(store)
    states = []
    for _ in range(3):
        claim = examples.claim(store, job.id)
        with store.database.write() as tx:
            states.append(tx.leases.reclaim(held(claim), 3, "the process is gone"))
    assert states == ["queued", "queued", "failed"]
    stored = examples.job(store, job.id)
    assert (stored.state, stored.stop_reason) == ("failed", "infra")
    assert stored.error is not None
    assert stored.error["reason"] == "worker_lost"
    assert "3 workers in a row" in stored.error["summary"]
    assert examples.events(store, job.id)[-1] == "job.finished"


def test_progress_forgives_earlier_crashes(store: Store) -> None:
    job = examples.submit(store)
    for _ in range(5):
        claim = examples.claim(store, job.id)
        with store.database.write() as tx:
            tx.leases.progressed(claim)
        with store.database.write() as tx:
            assert tx.leases.reclaim(held(claim), 2, "the process is gone") == "queued"


def test_reclaiming_twice_counts_once(store: Store) -> None:
    claim = examples.started(store)
    with store.database.write() as tx:
        assert tx.leases.reclaim(held(claim), 3, "gone") == "queued"
        assert tx.leases.reclaim(held(claim), 3, "gone") is None
    assert examples.job(store, claim.job_id).crashes == 1


def test_a_lost_job_whose_cancellation_was_requested_ends_cancelled(store: Store) -> None:
    claim = examples.started(store)
    with store.database.write() as tx:
        tx.jobs.request_cancel(claim.job_id)
    with store.database.write() as tx:
        assert tx.leases.reclaim(held(claim), 3, "gone") == "cancelled"
    stored = examples.job(store, claim.job_id)
    assert (stored.state, stored.stop_reason, stored.error) == ("cancelled", "cancelled", None)


def test_a_job_that_no_worker_can_start_fails(store: Store) -> None:
    job, running = examples.submit(store), examples.started(store)
    error = {"reason": "worker_lost", "summary": "the worker exits with 1"}
    with store.database.write() as tx:
        assert tx.leases.fail_queued(job.id, error)
        assert not tx.leases.fail_queued(running.job_id, error)
    stored = examples.job(store, job.id)
    assert (stored.state, stored.error) == ("failed", error)


def test_wakeups_are_due_again_after_a_while(store: Store) -> None:
    waiting = examples.submit(store)
    examples.started(store)
    with store.database.write() as tx:
        assert tx.leases.due_wakeups(60) == []
        assert tx.leases.due_wakeups(-1) == [Wakeup(waiting.id, "sim:h200x4")]
        assert tx.leases.due_wakeups(60) == []
