"""Which policy a policy string makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent.llm.protocol import LlmSettings
from agent.policies import create_policy
from agent.spec import JobSpec, SpecError
from pk_runtime.target import TargetError
from problems.description import describe
from problems.registry import get
from tests.agent.analytic import kernel


def job(policy: str, target: str = "sim:h200x4") -> JobSpec:
    return JobSpec(problem="allreduce", target=target, policy=policy)


def test_each_policy_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text(kernel().source)
    problem = describe(get("allreduce"), 4)
    assert create_policy(job("tuner")).name == "tuner"
    assert create_policy(job(f"scripted:{tmp_path}")).name == "scripted"
    assert create_policy(job("llm:openai/stub"), problem=problem, llm=LlmSettings()).name == "llm"


def test_uploaded_candidates_need_no_directory() -> None:
    spec = JobSpec(
        problem="allreduce", target="sim:h200x4", policy="scripted", scripted=(kernel(),)
    )
    assert create_policy(spec).name == "scripted"


def test_a_model_needs_the_problem() -> None:
    with pytest.raises(SpecError, match="needs the problem's description"):
        create_policy(job("llm:openai/stub"))


def test_a_target_nobody_knows() -> None:
    with pytest.raises(TargetError):
        create_policy(job("llm:openai/stub", "sim:abacus"), problem=describe(get("allreduce"), 4))


def test_the_tuner_and_the_loop_do_not_pay_for_the_model_client() -> None:
    program = (
        "import sys, agent.loop, agent.policies.tuner, agent.policies.llm; "
        "sys.exit('litellm' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
