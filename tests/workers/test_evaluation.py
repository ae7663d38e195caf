"""What an evaluation asks for, as JSON and back."""

from __future__ import annotations

from typing import Any

import pytest

from agent.spec import SpecError
from pk_runtime.candidate import Candidate
from workers.evaluation import EvaluationSpec

SPEC = EvaluationSpec(
    "allreduce",
    "sim:h200x4",
    Candidate("pk", {"kernel.cu": "..."}, {"stages": 3}),
    shapes=("tiny",),
    seed=7,
    depth="quick",
)


@pytest.mark.parametrize("spec", [SPEC, EvaluationSpec("a", "b", SPEC.candidate)])
def test_round_trip_through_json(spec: EvaluationSpec) -> None:
    assert EvaluationSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depth": "deep"}, "depth is 'deep': use 'quick' or 'full'"),
        ({"candidate": {"language": "pk"}}, "candidate.files: files must map"),
        ({"candidate": None}, "candidate.candidate: a candidate is a JSON object"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        EvaluationSpec.from_json(SPEC.to_json() | changes)


def test_missing_fields_are_named() -> None:
    data = SPEC.to_json()
    del data["target"]
    with pytest.raises(SpecError, match="no field 'target'"):
        EvaluationSpec.from_json(data)
