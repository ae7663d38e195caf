"""The stored calibration: complete, within its bounds, and what this code measures."""

import math
from pathlib import Path

import pytest

from benchmarks.calibration import measured, table
from problems.calibration import Calibration, calibration_of, stored
from problems.lint.controls import MIN_GAP, MIN_SIGNAL
from problems.lint.noise import Noise
from problems.lint.report import LintReport
from problems.registry import catalogue, get

PAGE = Path(__file__).parents[2] / "docs" / "problems.md"
# A GEMM's last bits differ between CPUs, and with them the largest error of a few thousand.
SLACK = 0.35


@pytest.mark.parametrize("problem", catalogue(), ids=lambda problem: problem.slug)
def test_every_problem_is_calibrated_and_its_tolerance_is_in_between(problem: object) -> None:
    slug = problem.slug  # type: ignore[attr-defined]
    known, found = stored()[slug], calibration_of(slug)
    assert found is not None
    checks = {shape.name for shape in get(slug).shapes if shape.kind == "check"}
    assert set(known["shapes"]) == checks
    assert (known["tolerance"], known["dtype"]) == (get(slug).tolerance, "bfloat16")
    assert found.gap >= MIN_GAP
    assert found.signal >= MIN_SIGNAL
    assert bool(found.noise) == (known["tolerance"] != "T0")
    assert all(noise.max < 1 and noise.rms < 1 for noise in found.noise.values())


def test_nothing_else_is_stored() -> None:
    assert set(stored()) == {problem.slug for problem in catalogue()}
    assert calibration_of("scaled_allreduce") is None


@pytest.mark.parametrize("slug", ["allreduce", "gemm_reducescatter", "alltoall"])
def test_what_is_stored_is_what_is_measured(slug: str) -> None:
    for shape in ("tiny", "odd"):
        now, then = measured(get(slug), shape), stored()[slug]["shapes"][shape]
        assert now["limits"] == then["limits"]
        assert set(now["noise"]) == set(then["noise"])
        for part in ("gap", "signal"):
            assert now[part] == (then[part] and pytest.approx(then[part], rel=SLACK))
        for name, shares in then["noise"].items():
            assert now["noise"][name] == pytest.approx(shares, rel=SLACK), name


def test_the_page_has_the_stored_table() -> None:
    assert table() in PAGE.read_text(encoding="utf-8")


def test_the_worst_of_several_shapes_counts() -> None:
    reports = [
        LintReport(True, 1, (), 20.0, 30.0, {"ring": Noise(0.5, 0.1)}),
        LintReport(True, 1, (), math.inf, 25.0, {"ring": Noise(0.4, 0.3), "fp32": Noise(0.1, 0.1)}),
    ]
    assert Calibration.worst(reports, ["b", "a", "b"]) == Calibration(
        20.0, 25.0, {"ring": Noise(0.5, 0.3), "fp32": Noise(0.1, 0.1)}, ("a", "b")
    )
