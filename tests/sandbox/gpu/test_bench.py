"""The bench stage with real workers and runners that cheat: the clock is the judge's."""

import pytest

from pk_runtime.sheet import Sheet
from problems.description import describe
from problems.registry import get
from sandbox.gpu import traffic
from sandbox.gpu.bench import Bench
from sandbox.gpu.contender import Contender
from sandbox.gpu.pool import GpuPool
from sandbox.stages import StageFailed
from sandbox.verdict import Timing
from tests.sandbox.gpu.conftest import WORLD, Runners, small_cache
from tests.sandbox.gpu.stand_in import LAUNCH_S

SHAPE = "m1024n1024"


def bench(pool: GpuPool, runners: Runners, does: str, machine: Sheet) -> Timing:
    pool.ready()
    stage = Bench(pool, runners(does), machine, 7, lambda stage, detail: None)
    (timing,) = stage.run(describe(get("alltoall"), WORLD), [SHAPE])
    return timing


@pytest.mark.slow
def test_a_timing_says_how_it_was_measured(pool: GpuPool, runners: Runners) -> None:
    timing = bench(pool, runners, "right", small_cache())
    assert timing.kind == "measured"
    assert timing.candidate_us >= LAUNCH_S * 1e6
    assert timing.speedup == pytest.approx(timing.baseline_us / timing.candidate_us)
    assert "eager: there are no graphs on this device" in timing.detail["baseline"]
    assert "judge's clock" in timing.detail["protocol"]
    assert timing.detail["throughput"]["candidate"]["count"] == 6
    assert timing.detail["throughput"]["eager"]["count"] == 6
    assert len(timing.detail["throughput"]["candidate"]["samples_us"]) == 6
    low, high = timing.detail["speedup_interval"]
    assert 0 < low <= high
    assert timing.detail["sets"] == 3
    assert timing.detail["cleared_us"] < 1.25 * timing.candidate_us + 3.0
    assert timing.detail["nvlink"] == {"counted": False, "why": "the driver does not tell"}
    assert "incumbent" not in timing.detail
    assert timing.detail["launches"] % 3 == 0
    assert timing.detail["blocks"] == 131
    assert timing.detail["achieved"]["nvlink_gb_per_s"] > 0
    assert timing.detail["bottleneck"]["name"] == timing.bottleneck == "nvlink"
    assert timing.detail["bottleneck"]["why"].startswith("Not profiled. nvlink alone takes")
    assert 0 < timing.detail["bottleneck"]["utilization"]["nvlink"] < 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "status", "words"),
    [
        ("wrong", "wrong_output", "before it is timed"),
        ("wrong when timed", "race", "wrong in timed launches"),
        ("rest", "rejected", "leaves out work that it finds done"),
        ("late work", "rejected", "still written after every rank has said that it is done"),
    ],
)
def test_timed_launches_are_checked(
    does: str, status: str, words: str, pool: GpuPool, runners: Runners
) -> None:
    with pytest.raises(StageFailed) as caught:
        bench(pool, runners, does, small_cache())
    assert caught.value.status == status
    assert words in caught.value.evidence["summary"]


@pytest.mark.slow
def test_faster_than_the_machine_is_rejected(pool: GpuPool, runners: Runners) -> None:
    with pytest.raises(StageFailed) as caught:
        bench(pool, runners, "right", small_cache(nvlink=1e-3))
    assert caught.value.status == "rejected"
    assert "below the roofline" in caught.value.evidence["summary"]


@pytest.mark.slow
@pytest.mark.parametrize("moves", [True, False])
def test_a_candidate_must_move_bytes_where_gpus_count_them(
    moves: bool, pool: GpuPool, runners: Runners, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters that stand for the GPUs': much for the baseline, and for a candidate that moves."""
    turn, total = ["baseline"], [0]
    timed = Contender.time

    def time(contender: Contender, number: int, *, quiet: bool = False) -> None:
        turn[0] = "candidate"
        timed(contender, number, quiet=quiet)
        turn[0] = "baseline"

    def totals(_pool: GpuPool) -> list[tuple[int, int]]:
        total[0] += 1 << 50 if moves or turn[0] == "baseline" else 0
        return [(total[0], total[0])] * WORLD

    monkeypatch.setattr(Contender, "time", time)
    monkeypatch.setattr(traffic, "totals", totals)
    if moves:
        assert bench(pool, runners, "right", small_cache()).detail["nvlink"]["counted"]
        return
    with pytest.raises(StageFailed) as caught:
        bench(pool, runners, "right", small_cache())
    assert caught.value.status == "rejected"
    assert "NVLink carried 0 bytes per launch" in caught.value.evidence["summary"]


@pytest.mark.slow
def test_a_latency_that_the_clock_contradicts_is_left_out(pool: GpuPool, runners: Runners) -> None:
    timing = bench(pool, runners, "forged latency", small_cache())
    assert "candidate" not in timing.detail["latency"]
    assert "does not go with" in timing.detail["latency"]["left_out"]
    assert timing.candidate_us >= LAUNCH_S * 1e6
