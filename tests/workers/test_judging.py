"""Jobs with the real policies, judge and sandbox: from a row to a verdict and a bundle."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.policies.scripted import Scripted
from agent.policies.tuner import Tuner
from agent.spec import Budget, JobSpec
from pk_runtime.bundle import parse_bundle
from pk_runtime.candidate import Candidate
from pk_runtime.kernels import shipped
from store import Settings, Store
from tests.problems.samples import example_file
from tests.workers import examples
from workers.evaluation import EvaluationSpec
from workers.judging import open_parts
from workers.parts import JobCannotRunError
from workers.runner import run_job

SMALL = "m1024n1024"
TARGET = "sim:h200x4"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def settings(sqlite_settings: Settings) -> Settings:
    return sqlite_settings


@pytest.fixture
def store(sqlite_store: Store) -> Store:
    return sqlite_store


def add_problem(store: Store, folder: Path) -> str:
    source = example_file(folder).read_bytes()
    sha256 = store.artifacts.put(source)
    with store.database.write() as tx:
        tx.artifacts.record(sha256, kind="problem", size=len(source))
        problem = tx.problems.add(
            slug="mine",
            title="Mine",
            category="Test",
            source_sha256=sha256,
            description={},
            lint={},
        )
    return problem.id


def test_a_scripted_job_from_a_row_to_a_bundle(settings: Settings, store: Store) -> None:
    reckless = Candidate("pk", {"kernel.cu": "#include <unistd.h>\n"})
    spec = JobSpec(
        "allreduce",
        TARGET,
        policy="scripted",
        shape=SMALL,
        budget=Budget(attempts=2),
        scripted=(reckless, shipped("allreduce")[0]),
    )
    with store.database.write() as tx:
        job_id = tx.jobs.create("optimization", spec.to_json()).id
    assert run_job(job_id, settings) == "succeeded"
    assert examples.attempts(store, job_id) == [
        (1, "search", "rejected"),
        (2, "search", "correct"),
        (3, "confirm", "correct"),
    ]
    job = examples.job(store, job_id)
    assert job.bundle_sha256 is not None
    bundle = parse_bundle(store.artifacts.get(job.bundle_sha256))
    assert bundle.candidate == shipped("allreduce")[0]
    assert [timing["shape"] for timing in bundle.manifest["timings"]] == [SMALL]
    assert bundle.manifest["verdict"]["isolation"]["isolated"]
    shapes = {
        tensor["name"]: tensor["shape"]
        for side in ("inputs", "outputs")
        for tensor in bundle.manifest["interface"][side]
    }
    assert shapes == {"x": ["M", "N"], "y": ["M", "N"]}
    stages = [p["stage"] for t, p in examples.events(store, job_id) if t == "attempt.stage"]
    assert list(dict.fromkeys(stages)) == ["scan", "build", "check", "bench"]


def test_a_stranger_s_problem_is_judged_in_the_sandbox(
    settings: Settings, store: Store, tmp_path: Path
) -> None:
    problem_id = add_problem(store, tmp_path)
    candidate = Candidate("pk", {"kernel.cu": "#include <unistd.h>\n"})
    spec = EvaluationSpec("mine", TARGET, candidate, depth="quick")
    with store.database.write() as tx:
        job_id = tx.jobs.create("evaluation", spec.to_json(), problem_id=problem_id).id
        job = tx.jobs.get(job_id)
    assert run_job(job_id, settings) == "succeeded"
    assert examples.attempts(store, job_id) == [(1, "search", "rejected")]
    with open_parts(settings, store, job) as parts:
        assert parts.interface() is not None


def test_each_policy_is_made_for_its_job(settings: Settings, store: Store) -> None:
    spec = JobSpec("allreduce", TARGET)
    with store.database.write() as tx:
        job = tx.jobs.create("optimization", spec.to_json())
    with open_parts(settings, store, job) as parts:
        assert isinstance(parts.policy(spec), Tuner)
        scripted = JobSpec("allreduce", TARGET, "scripted", scripted=shipped("allreduce"))
        assert isinstance(parts.policy(scripted), Scripted)
        assert parts.policy(JobSpec("allreduce", TARGET, "llm:openai/gpt")).name.startswith("llm")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"problem": "perpetuum_mobile"}, "unknown_problem"),
        ({"target": "sim:abacus"}, "unknown_target"),
    ],
)
def test_what_does_not_exist_is_named(
    settings: Settings, store: Store, changes: dict[str, str], reason: str
) -> None:
    spec = JobSpec("allreduce", TARGET).to_json() | changes
    with store.database.write() as tx:
        job = tx.jobs.create("optimization", spec)
    with pytest.raises(JobCannotRunError) as caught, open_parts(settings, store, job):
        pass
    assert caught.value.reason == reason


def test_a_target_without_a_machine_ends_the_job(settings: Settings, store: Store) -> None:
    spec = JobSpec("allreduce", "cuda:h200x4", budget=Budget(attempts=1))
    with store.database.write() as tx:
        job_id = tx.jobs.create("optimization", spec.to_json()).id
    assert run_job(job_id, settings) == "failed"
    error = examples.job(store, job_id).error
    assert error is not None
    assert error["reason"] == "target_not_available"
    assert "sim:h200" in error["summary"]
