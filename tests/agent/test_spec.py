"""Job specifications: round trip, and messages a person can act on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.spec import Budget, JobSpec, SpecError, parse_policy
from tests.agent.analytic import kernel

MINIMAL = {"problem": "gemm_reducescatter", "target": "sim:h200x4"}


def test_round_trip_through_json() -> None:
    spec = JobSpec(
        **MINIMAL,
        policy="scripted",
        shape="m8192",
        budget=Budget(attempts=3, usd=0.5, wall_s=60),
        target_speedup=1.5,
        seed=7,
        start_from=kernel(stages=4),
        scripted=(kernel("a"), kernel("b", rotate=1)),
    )
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_defaults() -> None:
    spec = JobSpec.from_json(MINIMAL)
    assert (spec.policy, spec.budget, spec.policy_seed) == ("tuner", Budget(40, 5.0, 3600.0), 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": "genetic"}, "unknown policy 'genetic': use 'tuner'"),
        ({"policy": "llm"}, "names no model"),
        ({"policy": "tuner:fast"}, "takes no argument"),
        ({"policy": "scripted"}, "has no candidates"),
        ({"target_speedup": 0}, "number above 0"),
        ({"target_speedup": "fast"}, "job.target_speedup must be int or float, not str"),
        ({"problem": 16}, "job.problem must be str, not int"),
        ({"seed": True}, "job.seed must be int, not bool"),
        ({"colour": "red"}, "job has no field 'colour'"),
        ({"budget": {"attempts": 0}}, "budget.attempts is 0"),
        ({"budget": {"attempts": "40"}}, "budget.attempts must be int, not str"),
        ({"budget": {"usd": float("nan")}}, "budget.usd is nan"),
        ({"budget": {"wall_s": 0}}, "budget.wall_s is 0"),
        ({"budget": {"gpu": 1}}, "budget has no field 'gpu'"),
        ({"budget": [1]}, "budget must be an object, not list"),
        ({"start_from": "int main"}, "start_from: candidate"),
        ({"scripted": "x", "policy": "scripted"}, "scripted must be a list, not str"),
        ({"scripted": [{"files": 1}], "policy": "scripted"}, r"scripted\[0\]: "),
    ],
)
def test_bad_specs_say_what_and_where(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        JobSpec.from_json({**MINIMAL, **change})


def test_missing_fields_are_named() -> None:
    with pytest.raises(SpecError, match="target"):
        JobSpec.from_json({"problem": "allreduce"})


@pytest.mark.parametrize("text", ["tuner", "llm:openai/gpt-5", "llm:ollama/a:b", "scripted:dir"])
def test_policy_strings_round_trip(text: str) -> None:
    assert str(parse_policy(text)) == text
