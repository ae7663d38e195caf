"""Verdicts as data: what goes to JSON comes back, and nothing malformed is accepted."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from pk_runtime.candidate import Candidate
from pk_runtime.kernels import shipped_kernel
from sandbox.labels import LABELS, MEANING, labels
from sandbox.verdict import STATUSES, Timing, Verdict, VerdictError

TIMING = Timing("m1", "simulated", 100.0, 150.0, 1.5, 50.0, 0.5, "nvlink", {"why": {"a": 1}})
VERDICT = Verdict(
    status="correct",
    stage="done",
    problem="alltoall",
    target="sim:h200x4",
    language="pk",
    candidate="ab" * 32,
    depth="full",
    seed=3,
    evidence={"summary": "Right."},
    timings=(TIMING,),
    knobs={"stages": 4},
    isolation={"backend": "bubblewrap"},
    versions={"judge": "1"},
    labels=("lossy_arithmetic",),
)


def test_json_round_trip() -> None:
    data = json.loads(json.dumps(VERDICT.to_json(), allow_nan=False))
    assert Verdict.from_json(data) == VERDICT
    assert VERDICT.correct
    assert VERDICT.summary == "Right."


def test_json_has_no_numbers_that_json_lacks() -> None:
    evidence = {"summary": "x", "value": math.nan, "list": (1.0, math.inf), "set": {2, 1}}
    data = replace(VERDICT, evidence=evidence).to_json()
    assert data["evidence"] == {"summary": "x", "value": "nan", "list": [1.0, "inf"], "set": [1, 2]}
    json.dumps(data, allow_nan=False)


@pytest.mark.parametrize(
    "change",
    [
        {"status": "fine"}, {"stage": "cooked"}, {"depth": "deep"}, {"evidence": {}},
        {"evidence": "x"}, {"timings": {}}, {"timings": [{"shape": 1}]}, {"seed": "1"},
        {"problem": None}, {"knobs": []},
    ],
)  # fmt: skip
def test_malformed_verdicts_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(VerdictError):
        Verdict.from_json({**VERDICT.to_json(), **change})


def test_malformed_timings_are_refused() -> None:
    for change in ({"kind": "guessed"}, {"candidate_us": "1"}, {"candidate_us": True}):
        with pytest.raises(VerdictError):
            Timing.from_json({**TIMING.to_json(), **change})


def test_there_are_nine_statuses() -> None:
    assert len(STATUSES) == 9


def test_labels_are_told_and_ban_nothing() -> None:
    lossy = shipped_kernel("alltoall").source.replace("store_async", "store_add_async")
    assert labels(Candidate("pk", {"kernel.cu": lossy})) == ("lossy_arithmetic",)
    assert labels(shipped_kernel("alltoall")) == ()
    kept = 'h.scratch("box", g.box, 4); // cudaGraphLaunch in a comment'
    assert labels(Candidate("cuda", {"kernel.cu": kept})) == ("persistent_state",)
    triton = "import functools\n@functools.cache\ndef f(): pass\n"
    assert labels(Candidate("triton", {"kernel.py": triton})) == ("persistent_state",)
    assert set(MEANING) == set(LABELS)
