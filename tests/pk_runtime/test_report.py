"""Reports: parts add up, what is stored comes back, and the text keeps what matters."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from pk_runtime.bottleneck import Bottleneck
from pk_runtime.candidate import Knob
from pk_runtime.knob_advice import MEANINGS, RULES, advice
from pk_runtime.report import (
    PARTS,
    Report,
    ReportError,
    Split,
    Taxes,
    brief,
    candidate_taxes,
    path_of,
    stored_report,
    text,
)

PATH = Split(
    compute=200, hbm=120, link=30, exposed_communication=20, synchronization=10, launch=5, tail=40
)
KNOBS = (Knob("stages", 4, (2, 3, 4, 5, 6)), Knob("block_n", 256, (128, 192, 256)))
REPORT = Report(
    kind="simulated",
    target="sim:h200x4",
    time_us=PATH.total,
    floor_us=278.0,
    binding="compute",
    path=PATH,
    gap=PATH.less(278.0, "compute"),
    baseline_us=707.6,
    baseline_taxes=Taxes(4.1, 341.1, 67.8),
    taxes=Taxes(2.5, 2.8, 84.7),
    bottleneck=Bottleneck(
        "operand_supply",
        "consumers wait 116.0 of 425.0 us for operands",
        {"tensor": 0.7, "l2": 0.5, "link_out": 0.6},
        {"operands": 116.0},
        0.87,
    ),
    knobs=advice("operand_supply", KNOBS, {"block_n": 128}),
)


@pytest.mark.parametrize("binding", ["compute", "nvlink", "hbm"])
@pytest.mark.parametrize("floor", [0.0, 5.0, 278.0, 424.0, 425.0])
def test_the_gap_adds_up_whatever_binds(binding: Any, floor: float) -> None:
    gap = PATH.less(floor, binding)
    assert math.isclose(gap.total, PATH.total - floor, abs_tol=1e-9)
    assert all(0 <= getattr(gap, part) <= getattr(PATH, part) for part in PARTS)


def test_the_floor_is_paid_by_its_own_resource_first() -> None:
    assert PATH.less(200, "compute") == replace(PATH, compute=0)
    assert PATH.less(210, "compute") == replace(PATH, compute=0, hbm=110)
    assert PATH.less(40, "nvlink") == replace(PATH, link=0, exposed_communication=10)
    assert PATH.less(130, "hbm") == replace(PATH, hbm=0, compute=190)
    launch_last = PATH.less(PATH.total - 5, "hbm")
    assert (launch_last.launch, launch_last.synchronization) == (5, 0) or launch_last.tail == 5


def test_a_floor_above_the_time_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        PATH.less(426.0, "compute")


def run(**changes: Any) -> dict[str, Any]:
    """What the engine reports of a kernel that multiplies until 80 and ends at 100 us."""
    rank = {"flops": 1e9, "last_mma_us": 80.0, "mean_last_mma_us": 70.0, "ended_us": 100.0,
            "mean_ended_us": 90.0, "hbm_bytes": 5e6}  # fmt: skip
    path = {"rank": 1, "compute_us": 60.0, "memory_us": 20.0, "link_us": 25.0,
            "synchronization_us": 1.0}  # fmt: skip
    whole = {"time_us": 108.5, "launch_us": 2.5, "path": path, "ranks": [{}, rank]}
    for name, value in changes.items():
        table: dict[str, Any] = next(t for t in (path, rank, whole) if name in t)
        table[name] = value
    return whole


def test_the_path_of_a_kernel_that_multiplies() -> None:
    split = path_of(run())
    assert split.exposed_communication == 20  # of the link's 25 us; the end is 20 us after the last
    assert split.link == 5
    assert split.tail == 10  # on average the SMs were done 10 us before the last one
    assert (split.compute, split.hbm) == (52.5, 17.5)  # in proportion
    assert (split.synchronization, split.launch) == (1.0, 2.5)
    assert math.isclose(split.total, 108.5)


def test_the_path_of_a_kernel_that_only_moves_data() -> None:
    split = path_of(run(flops=0, last_mma_us=0, mean_last_mma_us=0))
    assert split.exposed_communication == 0
    assert split.tail == pytest.approx(10)
    assert split.link == pytest.approx(25 - 10 * 25 / 105)
    assert math.isclose(split.total, 108.5)


@pytest.mark.parametrize(
    "changes",
    [{"time_us": 120.0}, {"compute_us": -1.0}, {"link_us": math.nan}, {"rank": 7},
     {"launch_us": None}, {"path": {}}, {"mean_last_mma_us": "x"}],
)  # fmt: skip
def test_a_malformed_path_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        path_of(run(**changes))


def test_the_taxes_of_a_candidate() -> None:
    whole = run() | {"ranks": [{"hbm_bytes": 5e6}, {"hbm_bytes": 9e6}]}
    taxes = candidate_taxes(whole, PATH, 1e6, 4e6)
    assert taxes == Taxes(launch=5, bulk_synchronous=30, locality=2.0)
    assert candidate_taxes(whole, PATH, 1e9, 4e6).locality == 0


def test_json_round_trip() -> None:
    data = json.loads(json.dumps(REPORT.to_json(), allow_nan=False))
    assert Report.from_json(data) == REPORT
    assert stored_report({"report": data}) == REPORT


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "guessed"}, "guessed"),
        ({"binding": "luck"}, "luck"),
        ({"target": 3}, "target"),
        ({"time_us": "fast"}, "time_us"),
        ({"time_us": math.inf}, "time_us"),
        ({"floor_us": True}, "floor_us"),
        ({"gap": []}, "gap"),
        ({"path": {"compute": 1.0}}, "hbm"),
        ({"taxes": {"launch": 1.0}}, "bulk_synchronous"),
        ({"bottleneck": {"name": "l2"}}, "bottleneck"),
        ({"knobs": [{"name": "stages"}]}, "knob"),
        ({"knobs": None}, "knobs"),
    ],
)
def test_a_malformed_report_names_the_field(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ReportError, match=said):
        Report.from_json(REPORT.to_json() | change)
    assert stored_report({"report": REPORT.to_json() | change}) is None


def test_a_verdict_of_an_older_version_has_no_report() -> None:
    assert stored_report({"bottleneck": {"name": "nvlink"}}) is None
    assert stored_report({"report": None}) is None


def test_the_text_keeps_what_matters() -> None:
    lines = text(REPORT, "m8192")
    whole = "\n".join(lines)
    assert len(lines) <= 16
    for words in ("m8192 on sim:h200x4: 425.0 us simulated", "707.6 us", "1.66x", "278.0 us",
                  "gap 147.0 us", "exposed communication 20.0", "341.1", "84.7", "tensor 70 %",
                  "L2 hit rate 87 %", "operand_supply", "stages=4: raise to 5 or 6"):  # fmt: skip
        assert words in whole
    assert "compute 0.0" not in whole
    assert len(brief(REPORT, "m8192")) == 2


def test_an_uncalibrated_time_says_so_everywhere() -> None:
    guess = replace(REPORT, kind="uncalibrated", target="sim:b200x8")
    assert "UNCALIBRATED" in text(guess, "x")[0]
    assert "uncalibrated" in brief(guess, "x")[0]


def test_advice_names_only_declared_knobs_that_can_still_move() -> None:
    (stages, block_n) = REPORT.knobs
    assert (stages.name, stages.value, stages.direction, stages.values) == (
        "stages", 4, "raise", (5, 6)
    )  # fmt: skip
    assert (block_n.name, block_n.value, block_n.values) == ("block_n", 128, (192, 256))
    at_most = advice("operand_supply", KNOBS, {"stages": 6, "block_n": 256})
    assert at_most == ()
    assert advice("no such bottleneck", KNOBS, {}) == ()


def test_a_change_offers_the_nearest_values_first() -> None:
    (super_m,) = advice("hbm", (Knob("super_m", 4, (1, 2, 4, 8, 16)),), {})
    assert super_m.values == (2, 1, 8, 16)
    assert super_m.text().startswith("super_m=4: change to 2 or 1 or 8 (")


def test_every_rule_names_a_knob_with_a_meaning() -> None:
    assert {name for rules in RULES.values() for name, _ in rules} <= set(MEANINGS)
