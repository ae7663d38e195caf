"""Celery over a real Redis, with PostgreSQL: the same jobs, started by a message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from store import Settings, Store, open_store
from tests.services import Postgres
from tests.workers import examples
from workers.broker import application
from workers.enqueue import enqueue
from workers.processes import descendants

WORKER = """
import sys
from store import Settings
from tests.workers.examples import example_parts
from workers.celery_app import run_worker
sys.exit(run_worker(Settings(), open_parts=example_parts))
"""
START_S = 90.0

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def settings(tmp_path: Path, postgres: Postgres, empty_redis: str) -> Settings:
    return Settings(
        home=tmp_path,
        database_url=postgres.create_database(migrated=True),
        broker_url=empty_redis,
        control_poll_s=0.05,
        reap_s=0.3,
    )


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    with open_store(settings) as store:
        yield store


@contextmanager
def worker(settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    """A Celery worker in a process of its own."""
    command = [sys.executable, "-c", WORKER]
    with subprocess.Popen(command, env=settings.environment(), cwd=settings.home) as process:
        try:
            yield process
        finally:
            process.kill()


def submit(settings: Settings, store: Store, *texts: str) -> str:
    job_id = examples.submit(store, *texts)
    assert enqueue(settings, job_id, examples.TARGET)
    return job_id


def state(store: Store, job_id: str) -> str:
    return examples.job(store, job_id).state


def judging(settings: Settings, text: str, times: int = 1) -> None:
    examples.wait_for(
        f"judgement {times} of {text!r}",
        lambda: examples.judgements(settings).count(f"quick {text}") == times,
        START_S,
    )


def waiting_messages(settings: Settings) -> int:
    assert settings.broker_url is not None
    with redis.Redis.from_url(settings.broker_url) as client:
        return int(client.llen("cpu"))


@pytest.mark.slow
def test_a_message_starts_a_job_and_a_second_one_changes_nothing(
    settings: Settings, store: Store
) -> None:
    job_id = submit(settings, store, "us=500", "us=400")
    assert enqueue(settings, job_id, examples.TARGET)
    with worker(settings):
        examples.wait_for("it ends", lambda: state(store, job_id) == "succeeded", START_S)
        other = submit(settings, store, "us=300")
        examples.wait_for("the next ends", lambda: state(store, other) == "succeeded", START_S)
    assert examples.job(store, job_id).runs == 1
    assert len(examples.attempts(store, job_id)) == 4
    assert examples.event_types(store, job_id).count("job.started") == 1


@pytest.mark.slow
def test_a_worker_that_is_told_to_end_hands_its_job_back(settings: Settings, store: Store) -> None:
    examples.shut_gate(settings)
    job_id = submit(settings, store, "us=500", "us=400 gate")
    with worker(settings) as process:
        judging(settings, "us=400 gate")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    job = examples.job(store, job_id)
    assert (job.state, job.crashes) == ("queued", 0)
    assert waiting_messages(settings) == 1
    examples.open_gate(settings)
    with worker(settings):
        examples.wait_for("it ends", lambda: state(store, job_id) == "succeeded", START_S)
    assert len(examples.attempts(store, job_id)) == 4
    assert examples.judgements(settings).count("quick us=500") == 1


@pytest.mark.slow
def test_a_killed_worker_takes_its_job_along_and_the_next_one_goes_on(
    settings: Settings, store: Store
) -> None:
    examples.shut_gate(settings)
    job_id = submit(settings, store, "us=500", "us=400 gate")
    with worker(settings) as process:
        judging(settings, "us=400 gate")
        started = descendants(process.pid)
        process.kill()
    examples.wait_for("all of it is gone", lambda: not examples.processes_of(started))
    # Its message is lost: Redis would show it again after a day. The next worker sends another.
    assert waiting_messages(settings) == 0
    examples.open_gate(settings)
    with worker(settings):
        examples.wait_for("it ends", lambda: state(store, job_id) == "succeeded", START_S)
    assert len(examples.attempts(store, job_id)) == 4
    assert examples.judgements(settings).count("quick us=500") == 1


@pytest.mark.slow
def test_a_killed_job_process_and_a_cancelled_job(settings: Settings, store: Store) -> None:
    examples.shut_gate(settings)
    job_id = submit(settings, store, "us=500", "us=400 gate")
    with worker(settings):
        judging(settings, "us=400 gate")
        _, pid, _ = (examples.job(store, job_id).lease_owner or "").split(":")
        os.kill(int(pid), signal.SIGKILL)
        judging(settings, "us=400 gate", 2)
        with store.database.write() as tx:
            tx.jobs.request_cancel(job_id)
        examples.wait_for("it ends", lambda: state(store, job_id) == "cancelled", START_S)
    assert examples.attempts(store, job_id) == [(1, "search", "correct"), (2, "search", None)]


def test_its_settings_are_those_of_long_jobs(settings: Settings) -> None:
    conf = application(settings).conf
    assert conf.task_acks_late
    assert conf.task_reject_on_worker_lost
    assert conf.task_ignore_result
    assert conf.result_backend is None
    assert (conf.worker_prefetch_multiplier, conf.worker_max_tasks_per_child) == (1, 1)
    assert conf.broker_transport_options["visibility_timeout"] > settings.max_job_wall_s
    assert conf.task_time_limit > settings.max_job_wall_s
    assert conf.accept_content == ["json"]
