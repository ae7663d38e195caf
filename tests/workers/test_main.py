"""`run-job` as a process: killed, drained, cancelled, overtaken; what is stored is never redone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pk_runtime.bundle import parse_bundle
from store import Settings, Store
from tests.workers import examples
from tests.workers.job_process import COMMAND
from workers.__main__ import main
from workers.identity import host
from workers.processes import JobProcess, descendants
from workers.reaper import reap
from workers.runner import run_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

START_S = 60.0
END_S = 30.0


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return quick(sqlite_settings)


@pytest.fixture
def store(sqlite_store: Store) -> Store:
    return sqlite_store


def quick(settings: Settings) -> Settings:
    """The settings with short waits, and the gate shut."""
    settings.prepare()
    examples.shut_gate(settings)
    return settings.model_copy(update={"control_poll_s": 0.05, "abandon_s": 1.0})


@contextmanager
def job_process(settings: Settings, job_id: str) -> Iterator[JobProcess]:
    """A process that runs the job with the example judge; gone afterwards."""
    process = JobProcess([*COMMAND, job_id], settings.environment())
    try:
        yield process
    finally:
        process.end(0.0)


def waiting(process: JobProcess) -> bool:
    """Whether the job's process waits at the gate, or sleeps."""
    return any(name_of(pid) == "sleep" for pid in descendants(process.pid))


def name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def in_the_middle(settings: Settings, process: JobProcess, text: str, times: int = 1) -> None:
    """Wait until the judgement of a candidate that sleeps has begun, for the n-th time."""
    examples.wait_for(
        f"judgement {times} of {text!r}",
        lambda: examples.judgements(settings).count(f"quick {text}") == times and waiting(process),
        START_S,
    )


def ended(process: JobProcess) -> int:
    """The exit code of the job's process, and a check that it left nothing running."""
    started = descendants(process.pid)
    examples.wait_for("the process ends", lambda: process.poll() is not None, END_S)
    examples.wait_for(
        "all that it started is gone", lambda: not examples.processes_of(started), END_S
    )
    code = process.poll()
    assert code is not None
    return code


def act_in_the_middle(
    settings: Settings, job_id: str, text: str, action: Callable[[JobProcess], None], times: int = 1
) -> int:
    """Run the job in a process, act once the candidate is being judged; the exit code."""
    with job_process(settings, job_id) as process:
        in_the_middle(settings, process, text, times)
        action(process)
        return ended(process)


def finish_here(settings: Settings, job_id: str) -> str | None:
    """Open the gate and run the rest of the job in this process."""
    examples.open_gate(settings)
    return run_job(job_id, settings, open_parts=examples.example_parts)


def test_a_job_survives_any_number_of_killed_workers(settings: Settings, store: Store) -> None:
    """kill -9 in the middle of an evaluation: no attempt is lost, doubled or judged again."""
    slow = "us=400 gate"
    job_id = examples.submit(store, "us=500", slow, "us=300")
    for times in (1, 2):
        code = act_in_the_middle(
            settings, job_id, slow, lambda process: os.kill(process.pid, signal.SIGKILL), times
        )
        assert code == -signal.SIGKILL
        assert examples.attempts(store, job_id) == [(1, "search", "correct"), (2, "search", None)]
        assert reap(store, settings) == 1
        assert examples.job(store, job_id).state == "queued"
    assert finish_here(settings, job_id) == "succeeded"

    assert examples.attempts(store, job_id) == [
        (1, "search", "correct"),
        (2, "search", "correct"),
        (3, "search", "correct"),
        (4, "confirm", "correct"),
        (5, "confirm", "correct"),
        (6, "confirm", "correct"),
    ]
    searched = [line for line in examples.judgements(settings) if line.startswith("quick")]
    assert searched == ["quick us=500", *[f"quick {slow}"] * 3, "quick us=300"]
    told = examples.event_types(store, job_id)
    assert told.count("attempt.proposed") == told.count("attempt.judged") == 6
    assert told.count("job.resumed") == 2
    job = examples.job(store, job_id)
    assert (job.best_number, job.crashes, job.runs) == (4, 0, 3)


def test_a_drained_job_is_handed_back_and_goes_on(settings: Settings, store: Store) -> None:
    slow = "us=400 gate"
    job_id = examples.submit(store, "us=500", slow)
    code = act_in_the_middle(settings, job_id, slow, JobProcess.drain)
    assert code == 0
    job = examples.job(store, job_id)
    assert (job.state, job.crashes, job.lease_owner) == ("queued", 0, None)
    assert job.ran_s > 0
    assert examples.event_types(store, job_id)[-1] == "job.queued"
    assert finish_here(settings, job_id) == "succeeded"
    assert len(examples.attempts(store, job_id)) == 4
    assert examples.judgements(settings).count("quick us=500") == 1


def test_a_cancelled_job_ends_in_the_middle_of_an_evaluation(
    settings: Settings, store: Store
) -> None:
    slow = "us=400 gate"
    job_id = examples.submit(store, "us=500", slow)

    def cancel(_: JobProcess) -> None:
        with store.database.write() as tx:
            tx.jobs.request_cancel(job_id)

    assert act_in_the_middle(settings, job_id, slow, cancel) == 0
    job = examples.job(store, job_id)
    assert (job.state, job.stop_reason, job.best_number) == ("cancelled", "cancelled", None)
    assert examples.event_types(store, job_id)[-2:] == ["cancel.requested", "job.finished"]


def test_a_job_cancelled_after_it_verified_a_kernel_has_it_as_its_result(
    settings: Settings, store: Store
) -> None:
    # The target is reached, so the first is confirmed at once; the second never ends.
    slow = "us=400 gate"
    job_id = examples.submit(store, "us=500", slow, "us=300")
    assert finish_up_to_confirmed(settings, store, job_id) == "queued"

    def cancel(_: JobProcess) -> None:
        with store.database.write() as tx:
            tx.jobs.request_cancel(job_id)

    assert act_in_the_middle(settings, job_id, slow, cancel) == 0
    job = examples.job(store, job_id)
    assert (job.state, job.best_number) == ("cancelled", 2)
    assert job.bundle_sha256 is not None
    bundle = parse_bundle(store.artifacts.get(job.bundle_sha256))
    assert bundle.candidate == examples.kernel("us=500")


def finish_up_to_confirmed(settings: Settings, store: Store, job_id: str) -> str:
    """Leave the job queued with its first candidate searched and confirmed."""
    from agent.records import Proposal
    from workers.interruption import Interruption
    from workers.journal import StoreJournal

    with store.database.write() as tx:
        claim = tx.leases.claim(job_id, "host:1:1", 90)
    assert claim is not None
    journal = StoreJournal(store, claim, Interruption())
    candidate = examples.kernel("us=500")
    journal.propose(Proposal(candidate=candidate, hypothesis=""))
    journal.judged(1, examples.verdict(candidate))
    journal.propose(Proposal(candidate=candidate, hypothesis="", parent=1, phase="confirm"))
    journal.judged(2, examples.verdict(candidate, "full"))
    with store.database.write() as tx:
        tx.leases.hand_back(claim, 1.0, "drained")
    return examples.job(store, job_id).state


def test_a_zombie_writes_nothing_more(settings: Settings, store: Store) -> None:
    slow = "us=400 gate"
    job_id = examples.submit(store, "us=500", slow)

    def take_over(_: JobProcess) -> None:
        with store.database.write() as tx:
            (held,) = tx.leases.owned_on(host())
            assert tx.leases.reclaim(held, 3, "test") == "queued"
            assert tx.leases.claim(job_id, "elsewhere:1:1", 90) is not None

    assert act_in_the_middle(settings, job_id, slow, take_over) == 0
    job = examples.job(store, job_id)
    assert (job.state, job.lease_owner) == ("running", "elsewhere:1:1")
    assert examples.attempts(store, job_id)[-1] == (2, "search", None)
    assert examples.event_types(store, job_id)[-1] == "job.resumed"


def test_work_that_ignores_its_end_is_killed_with_its_process(
    settings: Settings, store: Store
) -> None:
    stubborn = "us=400 stubborn"
    job_id = examples.submit(store, stubborn)

    def cancel(_: JobProcess) -> None:
        with store.database.write() as tx:
            tx.jobs.request_cancel(job_id)

    assert act_in_the_middle(settings, job_id, stubborn, cancel) == 75
    assert reap(store, settings) == 1
    assert examples.job(store, job_id).state == "cancelled"


def test_a_candidate_that_kills_its_worker_ends_the_job(settings: Settings, store: Store) -> None:
    settings = settings.model_copy(update={"max_crashes": 2})
    job_id = examples.submit(store, "us=500", "us=400 die")
    for _ in range(2):
        with job_process(settings, job_id) as process:
            examples.wait_for("the process ends", lambda: process.poll() is not None, START_S)
        assert reap(store, settings) == 1
    job = examples.job(store, job_id)
    assert job.state == "failed"
    assert job.error is not None
    assert job.error["reason"] == "worker_lost"
    assert examples.attempts(store, job_id) == [(1, "search", "correct"), (2, "search", None)]


def test_a_process_whose_parent_is_gone_does_not_begin(
    settings: Settings, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            main(["run-job", "job_x", "--parent", "1"])
        except SystemExit as end:
            os._exit(7 if "has ended" in str(end) else 1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_usage_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run-job"])
    assert "job_id" in capsys.readouterr().err
