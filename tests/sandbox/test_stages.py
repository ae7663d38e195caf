"""The stages alone: plans, seeds, and the evidence made of what an untrusted process reports."""

import json
from typing import Any

import pytest

from pk_runtime.simulator import Outcome
from sandbox.stages.check import derive
from sandbox.stages.diagnosis import bounded, failure
from sandbox.stages.plan import Replay, plan
from sandbox.verdict import Status


def test_plans() -> None:
    quick = plan("quick", ["tiny", "odd", "default"], 4)
    assert (quick.shapes, quick.world_sizes, quick.launches) == (("tiny",), (4,), 2)
    full = plan("full", ["tiny", "odd", "default"], 4)
    assert (full.shapes, full.world_sizes, full.launches) == (("tiny", "odd", "default"), (2, 4), 3)
    assert plan("full", ["tiny"], 2).world_sizes == (2,)
    assert plan("full", ["tiny"], 1).world_sizes == (1,)
    assert plan("quick", ["tiny"], 4, 20).drawn_schedules == 20
    long = plan("full", ["tiny", "odd"], 4, "exhaustive")
    assert (long.shapes, long.world_sizes) == (("tiny",), (2, 4))
    assert long.search_wall_s > full.search_wall_s
    assert long.orders > full.orders


def test_a_run_of_a_check_has_a_name_that_is_read_back() -> None:
    text = "shape=tiny ranks=4 launches=3 compute_sms=5 schedule=pct:7:3:0"
    assert str(Replay.parse(text)) == text
    assert Replay.parse(text).schedule.strategy == "pct"
    for bad in ("", "tiny", text + " x=1", text.replace("4", "0"), text.replace("pct", "never")):
        with pytest.raises(ValueError, match=r"is no (run|schedule)"):
            Replay.parse(bad)


def test_derived_seeds_differ_and_repeat() -> None:
    drawn = {derive(5, "inputs", shape, world, launch)
             for shape in ("tiny", "odd") for world in (2, 4) for launch in range(3)}  # fmt: skip
    assert len(drawn) == 12
    assert all(0 <= seed < 1 << 63 for seed in drawn)
    assert derive(5, "inputs", "tiny") == derive(5, "inputs", "tiny") != derive(6, "inputs", "tiny")


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        ("deadlock", "deadlock"),
        ("fault", "crashed"),
        ("timeout", "timeout"),
        ("dirty", "race"),
        ("race", "race"),
    ],
)
def test_outcomes_become_statuses(outcome: Outcome, status: Status) -> None:
    report = {"outcome": outcome, "summary": "what happened", "rank": 3, "waits": [{"rank": 1}]}
    got, evidence = failure(outcome, report, "shape tiny")
    assert got == status
    assert evidence["summary"].startswith("what happened (shape tiny). ")
    assert evidence["rank"] == 3
    assert evidence["waits"] == [{"rank": 1}]
    assert "outcome" not in evidence


def test_a_report_without_a_summary_has_one() -> None:
    assert "ended in a fault" in failure("fault", {}, "here")[1]["summary"]
    assert "ended in a fault" in failure("fault", {"summary": 5, "waits": "x"}, "here")[1][
        "summary"
    ] or failure("fault", {"summary": 5}, "here")[1]["summary"].startswith("5")  # fmt: skip


def test_whatever_is_reported_stays_small_and_printable() -> None:
    deep: Any = 1
    for _ in range(50):
        deep = {"x": [deep]}
    value = {
        "deep": deep,
        "long": "x" * 10**6,
        "many": list(range(10**5)),
        "wide": {str(number): number for number in range(10**4)},
        "\x1b[2J": "\x1b]0;title\x07\u202e",
        "number": 10**4000,
        "nan": float("nan"),
        "flag": True,
        "none": None,
    }
    clean = bounded(value)
    text = json.dumps(clean, allow_nan=False)
    assert len(text) < 20_000
    assert "\\u001b" not in text
    assert "\\u202e" not in text
    assert clean["flag"] is True
    assert clean["none"] is None
