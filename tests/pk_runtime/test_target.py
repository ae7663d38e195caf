"""Targets: parsing, printing and what an unknown one says."""

import pytest

from pk_runtime.target import TargetError, all_targets, parse_target


def test_every_target_prints_as_it_is_parsed() -> None:
    assert [str(target) for target in all_targets()] == [
        "sim:b200x8",
        "sim:h100x8",
        "sim:h200x2",
        "sim:h200x4",
        "cuda:h200x2",
        "cuda:h200x4",
    ]
    for target in all_targets():
        assert parse_target(str(target)) == target
        assert target.world_size == target.sheet.world_size == int(str(target)[-1])


def test_times_are_simulated_or_measured() -> None:
    kinds = {(t.backend, t.sheet.calibrated): t.timing_kind for t in all_targets()}
    assert kinds == {
        ("sim", True): "simulated", ("sim", False): "uncalibrated", ("cuda", True): "measured"
    }  # fmt: skip


def test_a_machine_nobody_measured_is_no_place_to_measure() -> None:
    assert parse_target("sim:h100x8").world_size == 8
    with pytest.raises(TargetError, match="Did you mean"):
        parse_target("cuda:h100x8")


@pytest.mark.parametrize(
    "text", ["", "sim", "sim:", "h200x4", "sim:h100", "SIM:h200x4", "sim:../x"]
)
def test_an_unknown_target_lists_the_known_ones(text: str) -> None:
    with pytest.raises(
        TargetError, match="Known targets: sim:b200x8, sim:h100x8, sim:h200x2, sim:h200x4, cuda"
    ):
        parse_target(text)


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(TargetError, match="Did you mean 'sim:h200x4'"):
        parse_target("sim:h200x8")
