"""The judge with real kernels: what is right is `correct`, and every defect is named."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pk_runtime.candidate import Candidate
from pk_runtime.execution import Command, Completed
from pk_runtime.kernels import shipped, shipped_kernel, shipped_problems
from pk_runtime.target import parse_target
from problems.contract import HIDDEN
from problems.errors import UnknownShape
from problems.hidden import hidden_shapes
from problems.registry import get
from sandbox.explain import explain
from sandbox.isolation import SandboxFault, UnisolatedExecutor
from sandbox.judge import Judge, TargetNotAvailable
from sandbox.stages.check import derive
from sandbox.stages.plan import Replay
from sandbox.verdict import Verdict
from tests.sandbox.conformance import gone
from tests.sandbox.defects import DEFECTS, Defect, edited

TARGET = parse_target("sim:h200x4")
SMALL = "m2048n2880k2880"
RS = "gemm_reducescatter"


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: f"{d.kernel}-{d.name}".replace(" ", "-"))
def test_each_defect_is_named(defect: Defect, judge: Judge, judge_cache: Path) -> None:
    verdict = judge.evaluate(
        defect.candidate(), get(defect.problem), TARGET, depth="quick", seed=11
    )
    assert verdict.status == defect.status, verdict.summary
    for words in defect.evidence:
        assert words in verdict.summary
    assert not verdict.timings
    assert gone(str(judge_cache)), "the judge left something running"
    text = "\n".join(explain(verdict))
    assert text.startswith(defect.status)
    assert "next:" in text


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("problem", shipped_problems())
def test_shipped_kernels_are_correct(problem: str, judge: Judge) -> None:
    for candidate in shipped(problem):
        verdict = judge.evaluate(candidate, get(problem), TARGET, seed=7)
        assert verdict.status == "correct", verdict.summary
        assert verdict.depth == "full"
        assert len(verdict.timings) == sum(s.kind == "bench" for s in get(problem).shapes)
        for timing in verdict.timings:
            assert timing.kind == "simulated"
            assert 0 < timing.roofline_us <= timing.candidate_us
            assert timing.speedup == pytest.approx(timing.baseline_us / timing.candidate_us)


def test_a_verdict_carries_everything_to_repeat_it(judge: Judge) -> None:
    candidate = shipped_kernel("alltoall")
    stages: list[tuple[str, str]] = []

    def progress(stage: str, detail: dict[str, object]) -> None:
        stages.append((stage, str(detail.get("shape", ""))))

    verdict = judge.evaluate(candidate, get("alltoall"), TARGET, shapes=["m1024n1024"],
                             depth="quick", progress=progress)  # fmt: skip
    assert stages == [("scan", ""), ("build", ""), ("check", "tiny"), ("bench", "m1024n1024")]
    assert verdict.status == "correct"
    assert verdict.stage == "done"
    assert verdict.candidate == candidate.digest()
    assert (verdict.problem, verdict.target, verdict.language) == ("alltoall", "sim:h200x4", "pk")
    assert verdict.isolation["isolated"] is True
    assert verdict.isolation["network"] == "own namespace with a loopback only"
    assert set(verdict.versions) == {
        "pkforge", "judge", "problem", "sheet", "compiler", "simulator", "python", "torch",
    }  # fmt: skip
    assert Verdict.from_json(verdict.to_json()) == verdict
    again = judge.evaluate(candidate, get("alltoall"), TARGET, shapes=["m1024n1024"],
                           depth="quick", seed=verdict.seed)  # fmt: skip
    assert again == verdict


def test_seeds_are_drawn_anew(judge: Judge) -> None:
    candidate = edited("alltoall", "PK_KERNEL(alltoall)", "PK_KERNEL(")
    seeds = {judge.evaluate(candidate, get("alltoall"), TARGET).seed for _ in range(3)}
    assert len(seeds) == 3


@pytest.mark.slow
def test_full_depth_goes_over_all_shapes_and_world_sizes(judge: Judge) -> None:
    verdict = judge.evaluate(
        shipped_kernel("alltoall"), get("alltoall"), TARGET, shapes=["m1024n1024"]
    )
    assert verdict.status == "correct", verdict.summary
    checked = {(c["shape"], c["world_size"]) for c in verdict.evidence["checks"]}
    shapes = ("tiny", "odd", "default", *HIDDEN)
    assert checked == {(shape, world) for shape in shapes for world in (2, 4)}
    for entry in verdict.evidence["checks"]:
        low, high = (int(part.removeprefix("2^")) for part in entry["scales"].split(" to "))
        assert -10 <= low < high <= 10
        if entry["shape"] == "hidden_2":
            continue  # a small one or a large one
        small = entry["shape"] != "default"
        strategies = [text.partition(":")[0] for text in entry["schedules"]]
        if not small:
            assert strategies == ["random"]
            continue
        assert strategies[:2] == ["eager", "latest"]
        assert sorted(strategies[2:]) == ["pct"] * 3 + ["random"] * 3
        assert len(set(entry["schedules"])) == 8
        assert ("orders" in entry) == (entry["shape"] == "tiny")
        if entry["shape"] == "tiny":
            assert entry["orders"] == {
                "run": 1, "complete": True, "stopped_by": "", "redundant": 0
            }  # fmt: skip
    assert "The one order of synchronization of tiny on 4 ranks passes." in verdict.summary


@pytest.mark.slow
def test_a_kernel_for_the_stated_sizes_only_is_wrong_elsewhere(judge: Judge) -> None:
    """It is right at every shape that the problem states: only hidden ones tell."""
    knows = edited(
        "alltoall",
        "{self.rank(), at.row, at.col}, pipe.wait());",
        "{g.x.rows == 64 || g.x.rows == 33 || g.x.rows == 1024 ? self.rank() : "
        "(self.rank() + 1) % self.world(), at.row, at.col}, pipe.wait());",
    )

    def judged(**how: Any) -> Verdict:
        return judge.evaluate(knows, get("alltoall"), TARGET, shapes=["m1024n1024"], seed=3, **how)

    assert judged(depth="quick").status == "correct"
    verdict = judged()
    assert (verdict.status, verdict.evidence["shape"]) == ("wrong_output", "hidden_1")
    dims = verdict.evidence["dims"]
    assert dims == dict(hidden_shapes(get("alltoall"), derive(3, "hidden"), 4)[0].dims)
    run = judged(replay=Replay.parse(verdict.evidence["replay"]))
    assert (run.status, run.evidence["dims"]) == ("wrong_output", dims)
    with pytest.raises(UnknownShape, match="hidden_1"):
        judge.evaluate(knows, get("alltoall"), TARGET, shapes=["hidden_1"])


def test_work_left_out_where_nothing_is_compared(judge: Judge) -> None:
    """At bench shapes nothing is computed: a kernel that is right at check shapes only."""
    idle = edited("alltoall", "return x.planes *", "return x.rows > 1000 ? 0 : x.planes *")
    verdict = judge.evaluate(idle, get("alltoall"), TARGET, depth="quick")
    assert (verdict.status, verdict.stage) == ("rejected", "bench")
    assert "leaves out work" in verdict.summary
    assert not verdict.timings


def test_half_of_the_transfers_left_out(judge: Judge) -> None:
    half = edited(
        "alltoall",
        "store_async(self, g.y[at.plane], {self.rank(), at.row, at.col}, pipe.wait());",
        "auto& x = pipe.wait(); if (g.x.rows < 1000 || t % 2) "
        "store_async(self, g.y[at.plane], {self.rank(), at.row, at.col}, x);",
    )
    verdict = judge.evaluate(half, get("alltoall"), TARGET, shapes=["m32768n8192"], depth="quick")
    assert verdict.status == "rejected", verdict.summary


def test_what_a_kernel_may_not_use_is_rejected_before_it_runs(judge: Judge) -> None:
    spy = edited("alltoall", "using namespace pk;", "#include <fstream>\nusing namespace pk;")
    verdict = judge.evaluate(spy, get("alltoall"), TARGET, depth="quick")
    assert (verdict.status, verdict.stage) == ("rejected", "scan")
    assert verdict.evidence["violations"][0]["line"] == spy.source.splitlines().index(
        "#include <fstream>"
    ) + 1  # fmt: skip


def test_candidates_that_cannot_be_built(judge: Judge) -> None:
    for candidate, words in (
        (Candidate("pk", {"other.cu": "x"}), "kernel.cu"),
        (Candidate("triton", {"kernel.py": "x = 1"}), "triton"),
        (dataclasses.replace(shipped_kernel("alltoall"), knobs={"depth": 999}), "legal value"),
        (Candidate("pk", {"kernel.cu": "#include <pk/pk.h>\n"}), "kernel"),
    ):
        verdict = judge.evaluate(candidate, get("alltoall"), TARGET, depth="quick")
        assert (verdict.status, verdict.stage) == ("build_failed", "build"), verdict.summary
        assert words in verdict.summary


def test_mistakes_of_the_caller_are_not_verdicts(judge: Judge) -> None:
    candidate = shipped_kernel("alltoall")
    with pytest.raises(TargetNotAvailable, match="sim:h200x4"):
        judge.evaluate(candidate, get("alltoall"), parse_target("cuda:h200x4"))
    with pytest.raises(UnknownShape, match="m1024n1024"):
        judge.evaluate(candidate, get("alltoall"), TARGET, shapes=["huge"])


class BrokenSandbox(UnisolatedExecutor):
    """A sandbox that fails when it is needed."""

    def run(self, command: Command) -> Completed:
        raise SandboxFault("no space left on device")


def test_faults_of_the_machine_are_not_the_candidates(tmp_path: Path) -> None:
    judge = Judge(cache=tmp_path, executor=BrokenSandbox())
    verdict = judge.evaluate(shipped_kernel("alltoall"), get("alltoall"), TARGET, depth="quick")
    assert (verdict.status, verdict.stage) == ("infra_error", "build")
    assert "no space left" in verdict.summary
    assert verdict.isolation["isolated"] is False


def test_what_progress_raises_ends_the_judgement(judge: Judge) -> None:
    def stop(stage: str, detail: dict[str, object]) -> None:
        raise InterruptedError(stage)

    with pytest.raises(InterruptedError, match="scan"):
        judge.evaluate(shipped_kernel("alltoall"), get("alltoall"), TARGET, progress=stop)


def test_what_killed_judges_left_is_removed(tmp_path: Path) -> None:
    for name in ("99999999", "1"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    Judge(cache=tmp_path, executor=UnisolatedExecutor())
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["1"]
