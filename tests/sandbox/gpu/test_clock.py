"""The arithmetic of the clock."""

import math

import pytest

from sandbox.gpu import clock
from sandbox.gpu.clock import ClockError


def test_messages_and_graph_launches_cancel() -> None:
    launch_us, overhead_s = 400.0, 120e-6
    once, twice = (overhead_s + n * launch_us * 1e-6 for n in (50, 100))
    assert clock.per_launch_us(once, twice, 50) == pytest.approx(launch_us)


def test_dawdling_in_the_shorter_run_gains_next_to_nothing() -> None:
    honest = clock.per_launch_us(0.020, 0.040, 50)
    forged = clock.per_launch_us(0.039, 0.040, 50)
    assert honest == pytest.approx(400.0)
    assert honest * 0.99 < forged < honest
    assert clock.per_launch_us(0.010, 0.040, 50) == pytest.approx(honest), "nor does hurrying"


@pytest.mark.parametrize("times", [(0.0, 1.0), (1.0, -1.0), (math.nan, 1.0), (1.0, math.inf)])
def test_impossible_times_are_refused(times: tuple[float, float]) -> None:
    with pytest.raises(ClockError):
        clock.per_launch_us(*times, 10)


def test_the_slowest_rank_counts() -> None:
    assert clock.slowest([[1.0, 5.0, 2.0], [3.0, 4.0, 2.5]]) == [3.0, 5.0, 2.5]
    unusable: list[list[list[float]]] = [[], [[]], [[1.0], [1.0, 2.0]]]
    for times in unusable:
        with pytest.raises(ClockError):
            clock.slowest(times)


def test_spread() -> None:
    spread = clock.spread([float(n) for n in range(101, 0, -1)])
    assert (spread.p10_us, spread.median_us, spread.p90_us, spread.count) == (11, 51, 91, 101)
    unusable: list[list[float]] = [[], [1.0, math.nan], [0.0], [-1.0]]
    for samples in unusable:
        with pytest.raises(ClockError):
            clock.spread(samples)


def test_a_latency_may_not_undercut_the_clock() -> None:
    assert clock.believable(100.0, 100.0)
    assert clock.believable(90.0, 100.0)
    assert not clock.believable(80.0, 100.0)


@pytest.mark.parametrize("estimate_us", [1.5, 6.0, 28.0, 420.0, 1400.0, 30_000.0])
@pytest.mark.parametrize("sets", [1, 3, 7, 64])
def test_runs_are_long_enough_and_use_every_set_equally(estimate_us: float, sets: int) -> None:
    size = clock.size(estimate_us, sets)
    order = size.order()
    assert len(order) == size.graph
    assert size.launches == size.graph * size.replays
    assert {order.count(number) for number in range(sets)} == {size.graph // sets}
    assert size.launches * estimate_us * 1e-6 >= 0.5 * clock.RUN_S
    assert size.graph <= 512


def test_sets_go_beyond_the_cache_within_limits() -> None:
    assert clock.sets_beyond(50 << 20, 96 << 20) == 3
    assert clock.sets_beyond(50 << 20, 10 << 20) == 15
    assert clock.sets_beyond(50 << 20, 1 << 10) == 64
    assert clock.sets_beyond(50 << 20, 4 << 30, least=1, most=2) == 1


def test_a_ratio_is_as_certain_as_the_rounds_agree() -> None:
    steady = clock.ratio_interval([200.0] * 6, [100.0] * 6)
    assert steady == [2.0, 2.0]
    low, high = clock.ratio_interval(
        [200.0, 210.0, 190.0, 205.0, 195.0, 200.0], [100.0, 90.0, 110.0, 95.0, 105.0, 100.0]
    )
    assert 1.6 < low < 2.0 < high < 2.4
    assert clock.ratio_interval([200.0, 220.0], [100.0, 110.0]) == [2.0, 2.0], "drawn together"
    with pytest.raises(ClockError):
        clock.ratio_interval([], [1.0])
