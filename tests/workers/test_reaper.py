"""The reaper: dead workers lose their jobs at once, silent ones when their lease runs out."""

from __future__ import annotations

import subprocess

import pytest

from store import Settings, Store
from tests.workers import examples
from workers.identity import name_of, own_name
from workers.reaper import reap


def claimed(store: Store, owner: str, lease_s: float = 90.0) -> str:
    job_id = examples.submit(store, "us=500")
    with store.database.write() as tx:
        assert tx.leases.claim(job_id, owner, lease_s) is not None
    return job_id


@pytest.fixture
def dead() -> str:
    """The name of a process that has ended."""
    with subprocess.Popen(["sleep", "600"]) as process:
        name = name_of(process.pid)
        process.kill()
    return name


def test_the_job_of_a_dead_process_is_queued_at_once(
    settings: Settings, store: Store, dead: str
) -> None:
    job_id = claimed(store, dead)
    assert reap(store, settings) == 1
    assert examples.job(store, job_id).state == "queued"
    type, payload = examples.events(store, job_id)[-1]
    assert (type, payload["reason"], payload["cause"]) == (
        "job.queued",
        "worker_lost",
        "its process is gone",
    )
    assert reap(store, settings) == 0


def test_living_workers_keep_their_jobs(settings: Settings, store: Store) -> None:
    ids = [claimed(store, own_name()), claimed(store, "another-host:1:a.b.1")]
    assert reap(store, settings) == 0
    assert [examples.job(store, job_id).state for job_id in ids] == ["running", "running"]


def test_a_silent_worker_of_another_host_loses_its_job_with_its_lease(
    settings: Settings, store: Store
) -> None:
    job_id = claimed(store, "another-host:1:a.b.1", lease_s=-1)
    assert reap(store, settings) == 1
    assert examples.job(store, job_id).state == "queued"


def test_a_job_that_loses_every_worker_fails(settings: Settings, store: Store, dead: str) -> None:
    job_id = claimed(store, dead)
    for _ in range(settings.max_crashes - 1):
        assert reap(store, settings) == 1
        with store.database.write() as tx:
            assert tx.leases.claim(job_id, dead, 90) is not None
    assert reap(store, settings) == 1
    job = examples.job(store, job_id)
    assert job.state == "failed"
    assert job.error is not None
    assert job.error["reason"] == "worker_lost"


def test_lost_wake_ups_are_sent_again(sqlite_store: Store, empty_redis: str) -> None:
    import redis

    settings = Settings(home=sqlite_store.artifacts.root.parent, broker_url=empty_redis)
    patient = settings.model_copy(update={"resend_s": 3600.0})
    hasty = settings.model_copy(update={"resend_s": 1e-6})
    examples.submit(sqlite_store, "us=500")
    with redis.Redis.from_url(empty_redis) as client:
        reap(sqlite_store, patient)
        assert client.llen("cpu") == 0
        reap(sqlite_store, hasty)
        assert client.llen("cpu") == 1
        reap(sqlite_store, patient)
        assert client.llen("cpu") == 1


def test_a_job_taken_from_a_dead_worker_is_announced(
    sqlite_store: Store, empty_redis: str, dead: str
) -> None:
    import redis

    settings = Settings(home=sqlite_store.artifacts.root.parent, broker_url=empty_redis)
    claimed(sqlite_store, dead)
    reap(sqlite_store, settings)
    with redis.Redis.from_url(empty_redis) as client:
        assert client.llen("cpu") == 1
