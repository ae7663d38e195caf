"""Timing mode: predicted times obey the sheet, and what should matter does."""

import dataclasses
import math

import pytest
import torch

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import Compiler
from pk_runtime.kernels import shipped
from pk_runtime.sheet import Sheet
from pk_runtime.simulator import Simulator, TensorSpec, TimingRun
from problems.registry import get
from problems.roofline import roofline

WORLD = 4


def _predict(
    compiler: Compiler,
    simulator: Simulator,
    sheet: Sheet,
    slug: str,
    dims: dict[str, int],
    number: int = 0,
    **knobs: int,
) -> TimingRun:
    problem = get(slug)
    base = shipped(slug)[number]
    program = compiler.simulator(Candidate("pk", base.files, {**base.knobs, **knobs}))

    def specs(found: object) -> list[TensorSpec]:
        assert isinstance(found, dict)
        return [TensorSpec(name, spec.shape, spec.dtype) for name, spec in found.items()]

    run = simulator.timing(
        program,
        inputs=specs(problem.input_specs(dims, WORLD)),
        outputs=specs(problem.output_specs(dims, WORLD)),
        world_size=WORLD,
        sheet=sheet,
    )
    assert run.outcome == "finished", run.diagnosis
    return run


GEMM_RS = {"M": 8192, "N": 8192, "K": 8192}


def test_full_shape_is_between_roofline_and_unfused(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    run = _predict(compiler, simulator, sheet, "gemm_reducescatter", GEMM_RS)
    floor = roofline(get("gemm_reducescatter"), GEMM_RS, sheet, WORLD).us
    assert floor < run.time_us < 718  # the measured cuBLAS + NCCL time of this shape
    assert run.bottleneck is not None
    assert all(0 <= share <= 1 for share in run.bottleneck.utilization.values())


def test_work_is_conserved(compiler: Compiler, simulator: Simulator, sheet: Sheet) -> None:
    run = _predict(compiler, simulator, sheet, "gemm_reducescatter", GEMM_RS)
    ranks = run.diagnosis["ranks"]
    for rank in ranks:
        assert math.isclose(rank["flops"], 2 * 8192**3 / WORLD, rel_tol=1e-6)
        assert math.isclose(rank["link_out_bytes"], 3 / 4 * 8192**2 * 2, rel_tol=1e-6)
    assert math.isclose(
        sum(r["link_out_bytes"] for r in ranks), sum(r["link_in_bytes"] for r in ranks)
    )


def test_the_same_run_gives_the_same_time(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    dims = {"M": 2048, "N": 2880, "K": 2880}
    a, b = (_predict(compiler, simulator, sheet, "gemm_reducescatter", dims) for _ in range(2))
    assert a.time_us == b.time_us


@pytest.mark.parametrize(
    ("worse", "better"),
    [({"lag": 0}, {"lag": 128}), ({"stages": 2}, {"stages": 4}),
     ({"block_n": 128}, {"block_n": 256})],
)  # fmt: skip
def test_knobs_matter(
    worse: dict[str, int],
    better: dict[str, int],
    compiler: Compiler,
    simulator: Simulator,
    sheet: Sheet,
) -> None:
    slow = _predict(compiler, simulator, sheet, "gemm_reducescatter", GEMM_RS, **worse)
    fast = _predict(compiler, simulator, sheet, "gemm_reducescatter", GEMM_RS, **better)
    assert fast.time_us < slow.time_us


def test_faster_links_help_what_links_bound(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    dims = {"M": 8192, "N": 4096}
    run = _predict(compiler, simulator, sheet, "allreduce", dims, number=1)
    assert run.bottleneck is not None
    assert run.bottleneck.name == "nvlink"
    scalars = dataclasses.replace(
        sheet.simulator,
        link_out_bytes_per_us=2 * sheet.simulator.link_out_bytes_per_us,
        link_in_bytes_per_us=2 * sheet.simulator.link_in_bytes_per_us,
        link_store_bytes_per_us=2 * sheet.simulator.link_store_bytes_per_us,
        link_load_bytes_per_us=2 * sheet.simulator.link_load_bytes_per_us,
    )
    faster = dataclasses.replace(sheet, simulator=scalars)
    twice = _predict(compiler, simulator, faster, "allreduce", dims, number=1)
    assert 1.75 < run.time_us / twice.time_us < 2.05, "all but entry, exit and latencies"


def test_one_shot_wins_small_and_two_shot_wins_large(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    def times(dims: dict[str, int]) -> tuple[float, float]:
        one, two = (
            _predict(compiler, simulator, sheet, "allreduce", dims, number=n).time_us
            for n in (2, 1)
        )
        return one, two

    one, two = times({"M": 8192, "N": 4096})
    assert two < one
    one, two = times({"M": 1, "N": 4096})
    assert one <= two


def test_a_deadlock_is_found_without_arithmetic(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    source = shipped("gemm_reducescatter")[0].source
    broken = source.replace("signal(self, g.ready,", "if (self.rank() != 1) signal(self, g.ready,")
    assert broken != source
    program = compiler.simulator(Candidate("pk", {"kernel.cu": broken}, {}))
    bf16 = torch.bfloat16
    run = simulator.timing(
        program,
        inputs=[TensorSpec("a", (512, 128), bf16), TensorSpec("b", (128, 512), bf16)],
        outputs=[TensorSpec("c", (128, 512), bf16)],
        world_size=WORLD,
        sheet=sheet,
    )
    assert run.outcome == "deadlock"
    assert "no signal from rank 1" in run.diagnosis["summary"]


def test_a_signal_after_every_small_tile_costs_the_link(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    dims = {"M": 2048, "N": 1024}
    small = _predict(compiler, simulator, sheet, "reducescatter", dims)
    large = _predict(compiler, simulator, sheet, "reducescatter", dims, cols=256, depth=4)
    free = dataclasses.replace(
        sheet, simulator=dataclasses.replace(sheet.simulator, release_us=1e-6, peer_latency_us=1e-6)
    )
    unsignalled = _predict(compiler, simulator, free, "reducescatter", dims)
    assert unsignalled.time_us < large.time_us < small.time_us


def test_what_is_in_l2_comes_sooner(compiler: Compiler, simulator: Simulator, sheet: Sheet) -> None:
    problem, base = get("alltoall"), shipped("alltoall")[2]
    program = compiler.simulator(base)
    dims = {"M": 8, "N": 1024}

    def run(*, warm: bool) -> TimingRun:
        inputs, outputs = (
            [TensorSpec(name, spec.shape, spec.dtype) for name, spec in found.items()]
            for found in (problem.input_specs(dims, WORLD), problem.output_specs(dims, WORLD))
        )
        return simulator.timing(
            program, inputs=inputs, outputs=outputs, world_size=WORLD, sheet=sheet, warm=warm
        )

    cold, warm = run(warm=False), run(warm=True)
    gap = sheet.simulator.hbm_latency_us - sheet.simulator.l2_latency_us
    assert cold.time_us - warm.time_us == pytest.approx(gap, rel=0.2)
    assert warm.diagnosis["ranks"][0]["l2_misses"] < cold.diagnosis["ranks"][0]["l2_misses"]


def test_a_launch_and_its_doors_are_in_the_time(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    dims = {"M": 8, "N": 1024}
    pushed = _predict(compiler, simulator, sheet, "alltoall", dims, number=1)
    posted = _predict(compiler, simulator, sheet, "alltoall", dims, number=2)

    def slower_by(us: float, entry: str, number: int) -> float:
        costs = sheet.simulator
        costs = dataclasses.replace(costs, **{entry: getattr(costs, entry) + us})
        changed = dataclasses.replace(sheet, simulator=costs)
        found = _predict(compiler, simulator, changed, "alltoall", dims, number=number)
        return found.time_us - (pushed, posted)[number - 1].time_us

    assert slower_by(5, "enter_us", 2) == pytest.approx(5, rel=1e-6)
    assert slower_by(5, "release_us", 1) == pytest.approx(10, rel=1e-6), "a door at each end"
    assert slower_by(5, "release_us", 2) == 0, "mailboxes need no doors"
