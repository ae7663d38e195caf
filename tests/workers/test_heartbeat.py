"""The heartbeat: renews, sees a cancellation, notices that the lease is lost."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from store import Settings, Store, open_store
from store.leases import Claim
from tests.workers import examples
from workers.heartbeat import Heartbeat, Stopwatch
from workers.interruption import Interruption

OWNER = "host:1:1"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, lease_s=0.9, heartbeat_s=0.1, control_poll_s=0.02, abandon_s=0.1)


@pytest.fixture
def claim(settings: Settings, sqlite_store: Store) -> Claim:
    job_id = examples.submit(sqlite_store, "us=500")
    with sqlite_store.database.write() as tx:
        claim = tx.leases.claim(job_id, OWNER, settings.lease_s)
    assert claim is not None
    return claim


def test_it_renews_the_lease_and_books_the_time(
    settings: Settings, sqlite_store: Store, claim: Claim
) -> None:
    before = examples.job(sqlite_store, claim.job_id).lease_until
    assert before is not None
    interruption = Interruption()
    with Heartbeat(sqlite_store.database, claim, settings, interruption) as heartbeat:
        examples.wait_for(
            "the lease outlives its first length",
            lambda: (examples.job(sqlite_store, claim.job_id).lease_until or before) > before,
        )
        examples.wait_for(
            "working time is booked", lambda: examples.job(sqlite_store, claim.job_id).ran_s > 0
        )
    booked = examples.job(sqlite_store, claim.job_id).ran_s
    assert booked + heartbeat.stopwatch.lap() > booked
    assert interruption.reason is None


def test_it_sees_a_cancellation(settings: Settings, sqlite_store: Store, claim: Claim) -> None:
    interruption = Interruption()
    with Heartbeat(sqlite_store.database, claim, settings, interruption):
        with sqlite_store.database.write() as tx:
            tx.jobs.request_cancel(claim.job_id)
        examples.wait_for("it is interrupted", lambda: interruption.reason == "cancelled")


def test_it_notices_that_another_worker_owns_the_job(
    settings: Settings, sqlite_store: Store, claim: Claim
) -> None:
    interruption = Interruption()
    with Heartbeat(sqlite_store.database, claim, settings, interruption):
        with sqlite_store.database.write() as tx:
            (held,) = tx.leases.owned_on("host")
            tx.leases.reclaim(held, 3, "test")
        examples.wait_for("it is interrupted", lambda: interruption.reason == "lease_lost")


def test_without_a_database_the_lease_counts_as_lost_when_it_has_run_out(
    settings: Settings, sqlite_store: Store, claim: Claim, tmp_path: Path
) -> None:
    interruption = Interruption()
    gone = Settings(home=tmp_path / "gone", database_url=f"sqlite:///{tmp_path}/no/such.db")
    with (
        open_store(gone) as unreachable,
        Heartbeat(unreachable.database, claim, settings, interruption),
    ):
        examples.wait_for("it is interrupted", lambda: interruption.reason == "lease_lost")


def test_work_that_does_not_end_meets_the_last_resort(
    settings: Settings, sqlite_store: Store, claim: Claim
) -> None:
    interruption, called = Interruption(), Event()
    interruption.request("drained")
    with Heartbeat(sqlite_store.database, claim, settings, interruption, called.set):
        assert called.wait(60)


def test_what_comes_after_the_work_is_waited_for(
    settings: Settings, sqlite_store: Store, claim: Claim
) -> None:
    interruption, called = Interruption(), Event()
    interruption.request("cancelled")
    with Heartbeat(sqlite_store.database, claim, settings, interruption, called.set) as heartbeat:
        heartbeat.work_ended()
        assert not called.wait(5 * settings.abandon_s)


def test_each_second_is_booked_once() -> None:
    stopwatch = Stopwatch()
    laps = [stopwatch.lap() for _ in range(3)]
    assert all(lap >= 0 for lap in laps)
    assert sum(laps) < 60
