"""Shipped kernels on four GPUs, in one process: the source that the simulator runs."""

from pathlib import Path

import pytest
import torch

from pk_runtime.compiler import Compiler
from pk_runtime.gpu.one_process import OneProcess
from pk_runtime.kernels import shipped
from problems.contract import Problem
from problems.registry import catalogue

WORLD = 4
LAUNCHES = 5

KERNELS = [
    pytest.param(problem, number, id=f"{problem.slug}-{number}")
    for problem in catalogue()
    for number in range(len(shipped(problem.slug)))
]


def _kernel(
    problem: Problem, number: int, dims: dict[str, int], cache: Path, **options: float
) -> OneProcess:
    library = Compiler(cache).library(shipped(problem.slug)[number])
    inputs, outputs = (
        {name: spec.shape for name, spec in specs.items()}
        for specs in (problem.input_specs(dims, WORLD), problem.output_specs(dims, WORLD))
    )
    return OneProcess(library, inputs, outputs, world_size=WORLD, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape_name", ["tiny", "odd", "default"])
@pytest.mark.parametrize(("problem", "number"), KERNELS)
def test_right_back_to_back(
    problem: Problem, number: int, shape_name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dims = dict(next(s for s in problem.shapes if s.name == shape_name).dims)
    cache = tmp_path_factory.getbasetemp() / "gpu-cache"
    kernel = _kernel(problem, number, dims, cache)
    for seed in range(3):
        inputs = [problem.make_inputs(rank, WORLD, seed, dims) for rank in range(WORLD)]
        for rank, tensors in enumerate(inputs):
            for name, value in tensors.items():
                kernel.tensors[name][rank].copy_(value)
        for name in problem.output_names:
            for out in kernel.tensors[name]:
                out.fill_(float("nan"))
        kernel.synchronize()
        first: list[torch.Tensor] = []
        for launch in range(LAUNCHES):
            kernel.launch()
            if launch in (0, LAUNCHES - 1):
                kernel.synchronize()
                got = [out.cpu() for name in problem.output_names for out in kernel.tensors[name]]
                first = first or got
        assert all(torch.equal(a, b) for a, b in zip(first, got, strict=True)), "not deterministic"
        for rank, want in enumerate(problem.golden(inputs)):
            for name, gold in want.items():
                torch.testing.assert_close(
                    kernel.tensors[name][rank].cpu().double(), gold.double(), rtol=2**-7, atol=2**-6
                )
