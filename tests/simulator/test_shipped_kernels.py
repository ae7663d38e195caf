"""The shipped kernels in the simulator: many schedules, ragged shapes, back to back."""

import re
from pathlib import Path

import pytest
import torch

from pk_runtime.compiler import Compiler
from pk_runtime.kernels import shipped
from pk_runtime.sheet import Sheet
from pk_runtime.simulator import Simulator, TensorSpec
from problems.contract import Problem
from problems.registry import catalogue, get

SEEDS = (0, 1, 2, 3)
LAUNCHES = 3
DEVICE_LINES = 50

KERNELS = [
    pytest.param(problem, number, id=f"{problem.slug}-{number}")
    for problem in catalogue()
    for number in range(len(shipped(problem.slug)))
]


def _outputs(problem: Problem, dims: dict[str, int], world: int) -> list[TensorSpec]:
    specs = problem.output_specs(dims, world)
    return [TensorSpec(name, spec.shape, spec.dtype) for name, spec in specs.items()]


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("shape_name", ["tiny", "odd"])
@pytest.mark.parametrize(("problem", "number"), KERNELS)
def test_right_under_every_schedule(
    problem: Problem,
    number: int,
    shape_name: str,
    world: int,
    compiler: Compiler,
    simulator: Simulator,
    sheet: Sheet,
) -> None:
    dims = dict(next(s for s in problem.shapes if s.name == shape_name).dims)
    program = compiler.simulator(shipped(problem.slug)[number])
    for seed in SEEDS:
        launches = [
            [problem.make_inputs(r, world, 100 * seed + i, dims) for r in range(world)]
            for i in range(LAUNCHES)
        ]
        found = simulator.functional(
            program,
            launches=launches,
            outputs=_outputs(problem, dims, world),
            sheet=sheet,
            schedule_seed=seed,
        )
        assert found.outcome == "finished", found.diagnosis
        for inputs, outputs in zip(launches, found.outputs, strict=True):
            for gold, out in zip(problem.golden(inputs), outputs, strict=True):
                for name, want in gold.items():
                    torch.testing.assert_close(
                        out[name].double(), want.double(), rtol=2**-7, atol=2**-6
                    )


@pytest.mark.parametrize(
    "slug",
    [
        "gemm_reducescatter",
        "sp_ag_gemm_m_sharded",
        "gemm_allreduce",
        "reducescatter",
        "reducescatter_last_dim",
        "broadcast",
        "reduce",
    ],
)
def test_a_fast_rank_in_the_next_launch_is_told_apart(
    slug: str, compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    """One counter for all launches fails here about every tenth schedule: a fast rank's signal of
    the next launch would stand for what a slow rank still owes in this one."""
    problem, world = get(slug), 4
    dims = dict(problem.shapes[0].dims)
    program = compiler.simulator(shipped(slug)[0])
    launches = [[problem.make_inputs(r, world, i, dims) for r in range(world)] for i in range(3)]
    for seed in range(40):
        found = simulator.functional(
            program,
            launches=launches,
            outputs=_outputs(problem, dims, world),
            sheet=sheet,
            schedule_seed=seed,
        )
        assert found.outcome == "finished", found.diagnosis
        for ranks in found.outputs:
            for outputs in ranks:
                for name, value in outputs.items():
                    assert bool(value.isfinite().all()), f"{name} under schedule {seed}"


@pytest.mark.parametrize(("problem", "number"), KERNELS)
def test_a_schedule_replays_exactly(
    problem: Problem, number: int, compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    dims = dict(problem.shapes[0].dims)
    program = compiler.simulator(shipped(problem.slug)[number])
    inputs = [[problem.make_inputs(r, 4, 5, dims) for r in range(4)]]
    runs = [
        simulator.functional(
            program,
            launches=inputs,
            outputs=_outputs(problem, dims, 4),
            sheet=sheet,
            schedule_seed=7,
        )
        for _ in range(2)
    ]
    assert runs[0].diagnosis["steps"] == runs[1].diagnosis["steps"]
    for a, b in zip(runs[0].outputs[0], runs[1].outputs[0], strict=True):
        for name, value in a.items():
            assert torch.equal(value, b[name])


def _device_lines(source: str) -> int:
    """Lines of the roles: from each PK_ROLE to the brace that closes it."""
    roles = re.findall(r"^  PK_ROLE .*?^  }\n", source, re.MULTILINE | re.DOTALL)
    return sum(len(role.splitlines()) for role in roles)


@pytest.mark.parametrize(("problem", "number"), KERNELS)
def test_device_code_is_short(problem: Problem, number: int) -> None:
    lines = _device_lines(shipped(problem.slug)[number].source)
    assert 0 < lines < DEVICE_LINES


def test_there_is_one_gemm_main_loop() -> None:
    root = Path(__file__).parents[2] / "pk_runtime"
    users = [
        path.name
        for folder in ("include/pk/common", "kernels")
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in (".h", ".cu") and "mma_async(" in path.read_text(encoding="utf-8")
    ]
    assert users == ["gemm.h"]
