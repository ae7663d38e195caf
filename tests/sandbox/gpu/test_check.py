"""The check stage with real workers and runners that misbehave in every way."""

from typing import Any

import pytest
import torch

from problems.contract import HIDDEN
from problems.hidden import hidden_shapes
from problems.hosting import InProcessHost
from problems.registry import get
from sandbox.gpu.check import Check, late_patterns, plan
from sandbox.gpu.pool import GpuPool
from sandbox.gpu.ranks import RanksCase
from sandbox.stages import StageFailed
from tests.sandbox.gpu.conftest import WORLD, Runners


def check(pool: GpuPool, runners: Runners, does: str, *, depth: Any = "quick") -> dict[str, Any]:
    pool.ready()
    group = runners(does)
    host = InProcessHost(get("alltoall"))
    stage = Check(pool, group, host, 7, lambda stage, detail: None)
    return stage.run(plan(depth, ["tiny", "odd"], WORLD))


def test_a_right_kernel_passes_at_every_shape(pool: GpuPool, runners: Runners) -> None:
    evidence = check(pool, runners, "right", depth="full")
    assert [entry["shape"] for entry in evidence["checks"]] == ["tiny", "odd"]
    for entry in evidence["checks"]:
        assert entry["launches"] == 5 + 4 * 20 + WORLD
        assert entry["blocks"] == 131
        assert entry["same_bits_every_time"] is True
        assert entry["errors"]["y"] == {"max_error": 0.0, "max_limit": 0.0}
    assert "every output compared" in evidence["summary"]


def test_workers_need_not_know_a_shape_by_name(pool: GpuPool, runners: Runners) -> None:
    pool.ready()
    host = InProcessHost(get("alltoall")).with_hidden(3, WORLD)
    stage = Check(pool, runners("right"), host, 7, lambda stage, detail: None)
    (entry,) = stage.run(plan("quick", HIDDEN, WORLD))["checks"]
    assert (entry["shape"], entry["errors"]["y"]["max_error"]) == ("hidden_1", 0.0)
    assert entry["dims"] == dict(hidden_shapes(get("alltoall"), 3, WORLD)[0].dims)


@pytest.mark.parametrize(
    ("does", "status", "words"),
    [
        ("wrong", "wrong_output", ("y on", "alone")),
        ("race", "race", ("Right when each launch runs alone, wrong in a burst",)),
        ("early", "race", ("Right when each launch runs alone", "inputs that reach rank", "late")),
        ("deadlock", "deadlock", ("rank 1 block 0 communicator", "expected 4, seen 3")),
        ("deadlock in a burst", "deadlock", ("in a burst", "signal 'ready'")),
        ("die", "crashed", ("Rank 1 crashed", "exit code 3")),
        ("guard", "crashed", ("outside of its tensors", "rank 1")),
        ("input", "crashed", ("changes its input 'x' on rank 1",)),
        ("refuse", "crashed", ("N must be even",)),
        ("disagree", "crashed", ("rank 1: setup() asks for other symmetric memory",)),
    ],
)
def test_what_is_wrong_is_named(
    does: str, status: str, words: tuple[str, ...], pool: GpuPool, runners: Runners
) -> None:
    with pytest.raises(StageFailed) as caught:
        check(pool, runners, does)
    assert caught.value.status == status, caught.value
    for part in words:
        assert part in caught.value.evidence["summary"]
    assert caught.value.evidence["shape"] == "tiny"
    pool.health()
    assert "Right at tiny" in check(pool, runners, "right")["summary"]


def test_a_wait_is_a_row_of_the_evidence(pool: GpuPool, runners: Runners) -> None:
    with pytest.raises(StageFailed) as caught:
        check(pool, runners, "deadlock")
    first, second = caught.value.evidence["waits"]
    assert first == {
        "rank": 1, "block": 0, "role": "communicator", "launch": 3,
        "signal": "signal 'ready'", "slot": 3, "expected": 4, "seen": 3,
    }  # fmt: skip
    assert second["signal"] == "rank 1 to leave"


def test_a_wrong_output_is_compared_with_known_mistakes(pool: GpuPool, runners: Runners) -> None:
    with pytest.raises(StageFailed) as caught:
        check(pool, runners, "wrong")
    comparison = caught.value.evidence["comparison"]
    assert not comparison["ok"]
    assert {finding["rank"] for finding in comparison["findings"]} == {0, 1}


def test_late_ranks_cover_every_rank() -> None:
    patterns = dict(late_patterns(4, 20, 3))
    once = patterns["each rank late once"]
    assert [sum(delay > 0 for delay in rank) for rank in once] == [1, 1, 1, 1]
    assert len({rank.index(500.0) for rank in once}) == 4
    (always,) = (name for name in patterns if "always" in name)
    assert sorted(sum(rank) for rank in patterns[always]) == [0.0, 0.0, 0.0, 4000.0]
    drawn = patterns["every rank late at random"]
    assert all(0 <= delay <= 500 for rank in drawn for delay in rank)
    assert late_patterns(4, 20, 3) == late_patterns(4, 20, 3) != late_patterns(4, 20, 4)


def test_depths() -> None:
    assert plan("quick", ["tiny", "odd"], 4).worlds == (4,)
    assert plan("full", ["tiny", "odd"], 4).worlds == (4, 2)
    assert plan("full", ["tiny", "odd"], 2).worlds == (2,)
    assert plan("quick", ["tiny", "odd"], 4).shapes == ("tiny",)


def test_workers_draw_inputs_at_the_scale_that_the_judge_knows(
    pool: GpuPool, runners: Runners
) -> None:
    pool.ready()
    host = InProcessHost(get("alltoall"))
    description = host.describe(WORLD)
    shape, draws = description.shape("tiny"), [11, 12, 13]
    with RanksCase(pool, runners("right"), description, shape, draws, on_device=False) as case:
        case.poison()
        case.launch(range(3))
        assert len(set(case.scales)) == 3
        for number, (draw, k) in enumerate(zip(draws, case.scales, strict=True)):
            made = host.materialize("tiny", WORLD, draw)
            rms = float(made.inputs[0]["x"].double().square().mean().sqrt())
            assert rms == pytest.approx(2.0**k, rel=0.1)
            for rank, outputs in enumerate(case.outputs(number)):
                assert torch.equal(outputs["y"], made.golden[rank]["y"])


def test_the_evidence_names_the_scales(pool: GpuPool, runners: Runners) -> None:
    (entry,) = check(pool, runners, "right")["checks"]
    low, high = entry["scales"].split(" to ")
    assert -10 <= int(low.removeprefix("2^")) < int(high.removeprefix("2^")) <= 10
    with pytest.raises(StageFailed) as caught:
        check(pool, runners, "wrong")
    assert f"inputs times {caught.value.evidence['scale']}" in caught.value.evidence["summary"]
