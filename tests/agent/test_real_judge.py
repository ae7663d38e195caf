"""Policies with the real compiler, simulator, judge and sandbox."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agent.llm.protocol import LlmSettings
from agent.loop import Outcome, optimize
from agent.policies import create_policy
from agent.records import Depth
from agent.spec import Budget, JobSpec
from pk_runtime.candidate import Candidate
from pk_runtime.kernels import shipped
from pk_runtime.target import parse_target
from problems.registry import get
from sandbox.isolation import choose
from sandbox.judge import Judge
from sandbox.verdict import Verdict
from tests.agent.memory_journal import MemoryJournal
from tests.llm_stub import Answer, LlmStub, says

SHAPE = "m8192n8192k8192"


def job(problem: str, policy: str, budget: Budget) -> JobSpec:
    return JobSpec(
        problem=problem, target="sim:h200x4", policy=policy, shape=SHAPE, budget=budget, seed=1
    )


def run(
    spec: JobSpec, cache: Path, llm: LlmSettings | None = None
) -> tuple[Outcome, MemoryJournal]:
    judge = Judge(cache=cache, executor=choose())
    problem, target = get(spec.problem), parse_target(spec.target)
    description = judge.host(problem).describe(target.world_size)

    def evaluate(candidate: Candidate, depth: Depth, _best: Candidate | None) -> Verdict:
        return judge.evaluate(
            candidate, problem, target, shapes=(SHAPE,), seed=spec.seed, depth=depth
        )

    journal = MemoryJournal(spec.budget.usd)
    policy = create_policy(spec, problem=description, llm=llm)
    return optimize(spec, policy, evaluate, journal, lambda: 0.0), journal


def assert_beats_the_default(outcome: Outcome, journal: MemoryJournal) -> None:
    default = next(a for a in journal.stored if a.phase == "confirm" and a.parent == 1)
    best = outcome.best
    assert best is not None
    assert best.verdict is not None
    assert default.objective_us is not None
    assert best.objective_us is not None
    assert best.objective_us < default.objective_us
    assert (best.verdict.status, best.verdict.depth, best.kind) == ("correct", "full", "simulated")
    assert "odd" in json.dumps(best.verdict.evidence)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("problem", ["gemm_reducescatter", "sp_ag_gemm_m_sharded"])
def test_the_tuner_beats_the_shipped_default_and_its_winner_holds_at_odd_shapes(
    problem: str, tmp_path: Path
) -> None:
    outcome, journal = run(job(problem, "tuner", Budget(attempts=6)), tmp_path)
    assert journal.stored[0].candidate == shipped(problem)[0]
    assert_beats_the_default(outcome, journal)


def replies() -> list[Answer]:
    """Write a kernel that does not compile, one that deadlocks, one that is faster."""
    good = shipped("gemm_reducescatter")[0].source
    broken = good.replace("PK_ROLE storer", "PK_ROLE storer storer", 1)
    silent = re.sub(r"^ *if \(!own\) signal\(self, g\.ready,.*\n", "", good, flags=re.MULTILINE)
    assert silent != good
    faster = good.replace('knob("super_m", 4', 'knob("super_m", 8', 1)
    assert len({good, broken, silent, faster}) == 4
    return [
        says(f"hypothesis: idea {i}\npredicted_us: 450\nknobs: none\n```cpp\n{source}```")
        for i, source in enumerate((broken, silent, faster), start=1)
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_model_is_told_what_went_wrong_and_improves(tmp_path: Path) -> None:
    spec = job("gemm_reducescatter", "llm:openai/stub", Budget(attempts=4, usd=1.0))
    with LlmStub(replies()) as stub:
        settings = LlmSettings(
            stub.api_base, "k", input_usd_per_million=1.0, output_usd_per_million=10.0
        )
        outcome, journal = run(spec, tmp_path, settings)
    search = [a for a in journal.stored if a.phase == "search"]
    assert [a.status for a in search] == ["correct", "build_failed", "deadlock", "correct"]
    assert_beats_the_default(outcome, journal)
    assert outcome.best is not None
    assert outcome.best.parent == 4
    told = [request["messages"][1]["content"] for request in stub.requests]
    assert "status: build_failed" in told[1]
    assert "status: deadlock" in told[2]
    assert "ready" in told[2].partition("evidence: ")[2], "the signal that nobody sends is named"
    assert sum(call.usd or 0 for call in journal.calls) == pytest.approx(0.018)
