"""What a timing run must do: as much as what was compared, and more at a larger shape."""

import math

import pytest

from sandbox.stages.demand import SAME_SHARE, figures, grows_less, less_work

REAL = [{"loaded_bytes": 1000.0, "flops": 500.0, "signals": 4.0} for _ in range(4)]


def changed(rank: int, **values: float) -> list[dict[str, float]]:
    return [{**each, **(values if at == rank else {})} for at, each in enumerate(REAL)]


def test_the_same_work_and_more_is_fine() -> None:
    assert less_work(REAL, REAL) is None
    assert less_work(REAL, changed(2, loaded_bytes=2000.0)) is None
    assert less_work([], []) is None


@pytest.mark.parametrize("name", ["loaded_bytes", "flops", "signals"])
def test_less_work_on_any_rank_is_named(name: str) -> None:
    said = less_work(REAL, changed(3, **{name: 0.9 * REAL[3][name]}))
    assert said is not None
    assert said.startswith("rank 3 ")
    assert less_work(REAL, changed(3, **{name: 0.96 * REAL[3][name]}), SAME_SHARE) is None


def test_ranks_cannot_be_left_out_of_the_report() -> None:
    assert "1 ranks instead of 4" in str(less_work(REAL, REAL[:1]))
    assert less_work(REAL, figures({"demand": "none"})) is not None
    assert figures({"demand": [{"flops": math.inf, "signals": True}, 7]})[0]["flops"] == 0.0


def report(links: list[float], loaded: float = 100.0) -> dict[str, object]:
    return {
        "ranks": [{"link_in_bytes": n, "link_out_bytes": n} for n in links],
        "demand": [{"loaded_bytes": loaded, "flops": 1000.0} for _ in links],
    }


def test_traffic_grows_with_the_operator_on_every_rank() -> None:
    small = report([10.0] * 4)
    assert grows_less(small, report([80.0] * 4), 8.0, 4) is None
    assert grows_less(small, report([41.0] * 4), 8.0, 4) is None  # two phases instead of one
    said = grows_less(small, report([80.0, 80.0, 0.0, 80.0]), 8.0, 4)
    assert said is not None
    assert said.startswith("rank 2 ")
    assert "per operation" in str(grows_less(small, report([80.0] * 4, 1.0), 8.0, 4))
