"""The embedded dispatcher: runs what is queued, drains, and goes on where a killed service was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from store import Settings, Store, open_store
from tests.workers import examples
from tests.workers.job_process import COMMAND
from workers.dispatcher import Dispatcher
from workers.processes import descendants

FAILS_TO_START = (sys.executable, "-c", "import sys; sys.exit(3)")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings.model_copy(
        update={"dispatch_poll_s": 0.05, "control_poll_s": 0.05, "reap_s": 0.2, "drain_s": 30.0}
    )


@pytest.fixture
def store(sqlite_store: Store) -> Store:
    return sqlite_store


def state(store: Store, job_id: str) -> str:
    return examples.job(store, job_id).state


@pytest.mark.slow
def test_queued_jobs_run_oldest_first_one_at_a_time(settings: Settings, store: Store) -> None:
    ids = [examples.submit(store, f"us={us}") for us in (500, 400, 300)]
    with Dispatcher(settings, command=COMMAND):
        examples.wait_for("the last ends", lambda: state(store, ids[-1]) == "succeeded", 90)
    assert [state(store, job_id) for job_id in ids] == ["succeeded"] * 3
    searched = [line for line in examples.judgements(settings) if line.startswith("quick")]
    assert searched == ["quick us=500", "quick us=400", "quick us=300"]
    assert all(examples.job(store, job_id).runs == 1 for job_id in ids)


@pytest.mark.slow
def test_leaving_hands_jobs_back_and_the_next_one_goes_on(settings: Settings, store: Store) -> None:
    examples.shut_gate(settings)
    job_id = examples.submit(store, "us=500", "us=400 gate")
    waiting = lambda: "quick us=400 gate" in examples.judgements(settings)  # noqa: E731
    before = set(descendants(os.getpid()))
    with Dispatcher(settings, command=COMMAND):
        examples.wait_for("the second candidate", waiting)
        started = list(set(descendants(os.getpid())) - before)
    assert not examples.processes_of(started)
    job = examples.job(store, job_id)
    assert (job.state, job.crashes) == ("queued", 0)
    examples.open_gate(settings)
    with Dispatcher(settings, command=COMMAND):
        examples.wait_for("it ends", lambda: state(store, job_id) == "succeeded")
    assert len(examples.attempts(store, job_id)) == 4
    assert examples.judgements(settings).count("quick us=500") == 1


@pytest.mark.slow
def test_a_killed_service_takes_its_jobs_along_and_the_next_one_goes_on(
    settings: Settings, store: Store
) -> None:
    """kill -9 of the service; the next start does not wait for the lease to run out."""
    examples.shut_gate(settings)
    job_id = examples.submit(store, "us=500", "us=400 gate", "us=300")
    service = (
        "import time; from store import Settings; from workers.dispatcher import Dispatcher; "
        f"dispatcher = Dispatcher(Settings(), command={COMMAND!r}).__enter__(); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", service], env=settings.environment()) as process:
        examples.wait_for(
            "the second candidate",
            lambda: "quick us=400 gate" in examples.judgements(settings),
        )
        started = descendants(process.pid)
        process.send_signal(signal.SIGKILL)
    examples.wait_for("all of it is gone", lambda: not examples.processes_of(started))
    assert state(store, job_id) == "running"
    examples.open_gate(settings)
    with Dispatcher(settings, command=COMMAND):
        examples.wait_for("it ends", lambda: state(store, job_id) == "succeeded")
    rows = examples.attempts(store, job_id)
    assert [number for number, *_ in rows] == [1, 2, 3, 4, 5, 6]
    assert {status for *_, status in rows} == {"correct"}
    assert examples.judgements(settings).count("quick us=500") == 1
    assert examples.job(store, job_id).runs == 2


@pytest.mark.slow
def test_as_many_jobs_run_at_once_as_are_allowed(settings: Settings, store: Store) -> None:
    examples.shut_gate(settings)
    two = settings.model_copy(update={"parallel_jobs": 2})
    ids = [examples.submit(store, "us=500 gate") for _ in range(3)]
    with Dispatcher(two, command=COMMAND):
        examples.wait_for("two judgements", lambda: len(examples.judgements(settings)) == 2)
        assert [state(store, job_id) for job_id in ids] == ["running", "running", "queued"]
        with store.database.write() as tx:
            tx.jobs.request_cancel(ids[0])
        examples.wait_for("the third runs", lambda: state(store, ids[2]) == "running")
        assert state(store, ids[0]) == "cancelled"


def test_a_job_whose_process_cannot_begin_fails(settings: Settings, store: Store) -> None:
    once = settings.model_copy(update={"max_crashes": 1})
    job_id = examples.submit(store, "us=500")
    with Dispatcher(once, command=FAILS_TO_START):
        examples.wait_for("it fails", lambda: state(store, job_id) == "failed")
    error = examples.job(store, job_id).error
    assert error is not None
    assert error["reason"] == "worker_lost"
    assert "ended 1 times with code 3" in error["summary"]


def test_a_job_whose_process_cannot_begin_is_tried_again(settings: Settings, store: Store) -> None:
    twice = settings.model_copy(update={"max_crashes": 2})
    job_id = examples.submit(store, "us=500")
    with Dispatcher(twice, command=FAILS_TO_START):
        examples.wait_for("it fails", lambda: state(store, job_id) == "failed")
    error = examples.job(store, job_id).error
    assert error is not None
    assert "ended 2 times" in error["summary"]


def test_it_waits_for_a_database_that_does_not_answer(settings: Settings) -> None:
    folder = settings.home / "later"
    url = f"sqlite:///{folder / 'pkforge.db'}"
    later = settings.model_copy(update={"database_url": url, "max_crashes": 1})
    with Dispatcher(later, command=FAILS_TO_START):
        folder.mkdir()
        with open_store(later, migrate=True) as store:
            job_id = examples.submit(store, "us=500")
            examples.wait_for("it is found", lambda: state(store, job_id) == "failed")
