"""From source to verdict, and what happens to workers and GPUs on the way."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pk_runtime.candidate import Candidate
from pk_runtime.target import Target, parse_target
from problems.registry import get
from sandbox.gpu import judging
from sandbox.gpu.group import RunnerGroup
from sandbox.gpu.judging import GpuJudging, Stopwatch
from sandbox.gpu.pool import GpuPool
from sandbox.isolation import UnisolatedExecutor
from sandbox.judge import Judge, TargetNotAvailable
from sandbox.problem_host import CustomProblem
from sandbox.verdict import Verdict
from tests.sandbox.gpu.conftest import STAND_IN, WORLD, small_cache

TARGET = Target("cuda", small_cache(), WORLD)


class _OnCpu(GpuJudging):
    """Judges with workers of the CPU; a candidate's source says how its stand-in behaves."""

    def require(self, target: Target) -> None:
        pass

    def _built(self, candidate: Candidate) -> tuple[Path, Path]:
        self._workspace.mkdir(parents=True, exist_ok=True)
        library = self._workspace / f"kernel-{candidate.digest()[:8]}.json"
        library.write_text(json.dumps({"does": candidate.source.removeprefix("// ")}))
        return library, library

    def _pool_of(self, world_size: int) -> GpuPool:
        if self._pool is None:
            self._pool = GpuPool(world_size, device="cpu")
        return self._pool


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with (
        pytest.MonkeyPatch.context() as patch,
        Judge(cache=tmp_path_factory.mktemp("judge"), executor=UnisolatedExecutor()) as made,
    ):
        patch.setattr(judging, "RunnerGroup", _stand_ins)
        patch.setattr(judging, "WAIT_S", 0.3)
        gpus = made._gpus
        made._gpus = _OnCpu(gpus._executor, gpus._compiler, gpus._simulator, gpus._workspace)
        yield made


def _stand_ins(*arguments: object, **options: object) -> RunnerGroup:
    return RunnerGroup(*arguments, **options, argv=STAND_IN)  # type: ignore[arg-type]


def does(what: str) -> Candidate:
    # "cuda" has no simulator stage, which stand-ins could not pass.
    return Candidate("cuda", {"kernel.cu": f"// {what}"})


def evaluate(judge: Judge, what: str, incumbent: Candidate | None = None) -> Verdict:
    return judge.evaluate(
        does(what),
        get("alltoall"),
        TARGET,
        shapes=["m1024n1024"],
        depth="quick",
        seed=5,
        incumbent=incumbent,
    )


@pytest.mark.slow
def test_a_right_kernel_is_judged_and_timed(judge: Judge) -> None:
    verdict = evaluate(judge, "right")
    assert verdict.status == "correct", verdict.summary
    assert [timing.shape for timing in verdict.timings] == ["m1024n1024"]
    assert set(verdict.evidence["seconds"]) == {
        "build", "start workers", "wait for GPUs", "start ranks", "check", "bench",
    }  # fmt: skip
    assert verdict.isolation["isolated"] is False
    assert Verdict.from_json(verdict.to_json()) == verdict


@pytest.mark.slow
def test_an_incumbent_is_timed_by_turns_with_the_candidate(judge: Judge) -> None:
    verdict = evaluate(judge, "right", incumbent=does("slower"))
    assert verdict.status == "correct", verdict.summary
    beside = verdict.timings[0].detail["incumbent"]
    assert beside["count"] == len(beside["samples_us"]) == 6
    low, high = beside["ratio_interval"]
    assert 0 < low <= beside["ratio"] <= high


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("wrong", "before it is timed"),
        ("wrong when timed", "wrong in timed launches"),
        ("die in a replay", "its ranks ended"),
    ],
)
def test_what_an_incumbent_does_wrong_is_not_the_candidates_fault(
    judge: Judge, fault: str, words: str
) -> None:
    verdict = evaluate(judge, "right", incumbent=does(fault))
    assert verdict.status == "correct", verdict.summary
    timing = verdict.timings[0]
    assert timing.candidate_us > 0
    assert words in timing.detail["incumbent"]["left_out"]
    assert evaluate(judge, "right").status == "correct"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "status"),
    [("deadlock", "deadlock"), ("illegal address", "crashed"), ("die", "crashed")],
)
def test_gpus_are_looked_at_after_a_failure_and_the_next_one_is_fine(
    fault: str, status: str, judge: Judge
) -> None:
    verdict = evaluate(judge, fault)
    assert verdict.status == status, verdict.summary
    assert verdict.evidence["gpus"] == "checked after it ended: healthy"
    assert not verdict.timings
    assert evaluate(judge, "right").status == "correct"


@pytest.mark.slow
def test_a_rank_that_hangs_ends_the_group(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.gpu.ranks._LAUNCH_S", 1.5)
    verdict = evaluate(judge, "hang")
    assert verdict.status == "timeout", verdict.summary
    assert verdict.evidence["late_ranks"] == [1]
    assert "Rank 1 did not come to an end" in verdict.summary
    assert evaluate(judge, "right").status == "correct"


@pytest.mark.slow
def test_a_worker_that_dies_is_nobodys_fault_and_is_replaced(judge: Judge) -> None:
    evaluate(judge, "right")
    pool = judge._gpus._pool
    assert pool is not None
    pool._workers[1].process.kill()
    pool._workers[1].process.wait()
    verdict = evaluate(judge, "right")
    assert verdict.status == "infra_error"
    assert "worker 1" in verdict.summary
    assert evaluate(judge, "right").status == "correct"
    assert pool.generation >= 2


def test_problems_from_files_are_refused(judge: Judge) -> None:
    with pytest.raises(TargetNotAvailable, match="not trusted"):
        judge.evaluate(Candidate("pk", {"kernel.cu": ""}), CustomProblem("x = 1"), TARGET)


def test_a_machine_without_gpus_says_what_to_use_instead(tmp_path: Path) -> None:
    target = parse_target("cuda:h200x4")
    with (
        Judge(cache=tmp_path, executor=UnisolatedExecutor()) as judge,
        pytest.raises(TargetNotAvailable, match="Use sim:h200x4"),
    ):
        judge.evaluate(Candidate("pk", {"kernel.cu": ""}), get("alltoall"), target)


def test_time_is_added_up_by_name() -> None:
    now = iter([0.0, 1.0, 5.0, 7.5])
    watch = Stopwatch(lambda: next(now))
    for _ in range(2):
        with watch("check"):
            pass
    assert watch.seconds == {"check": 3.5}
