"""The host half of every GPU library: it compiles, and setup() takes the catalogue's shapes."""

from pathlib import Path

import pytest

from pk_runtime.compiler import Compiler
from pk_runtime.gpu.binding import Library
from pk_runtime.gpu.tensors import pitch_of, view_at
from tests.gpu.kernels import EXAMPLES, Kernel, all_kernels

KERNELS = [pytest.param(kernel, id=str(kernel)) for kernel in (*all_kernels(), *EXAMPLES)]
WORLDS = (2, 4)


def plan(kernel: Kernel, library: Path, shape: str, world: int) -> frozenset[str]:
    """The tensors that peers touch, of a launch on tensors with padded rows, nowhere in memory."""
    dims = kernel.problem.shape(shape).dims
    inputs = kernel.problem.input_specs(dims, world)
    outputs = kernel.problem.output_specs(dims, world)
    views = {
        name: [view_at(0, spec.shape, spec.dtype, pitch_of(spec.shape, spec.dtype))] * world
        for name, spec in {**inputs, **outputs}.items()
    }
    return Library(library).plan(world - 1, world, views, frozenset(outputs)).shared


@pytest.mark.slow
@pytest.mark.usefixtures("needs_nvcc")
@pytest.mark.parametrize("kernel", KERNELS)
def test_setup_takes_every_shape_of_the_catalogue(kernel: Kernel, compiler: Compiler) -> None:
    library = compiler.library(kernel.candidate)
    names = {*kernel.problem.input_names, *kernel.problem.output_names}
    for shape in kernel.problem.shapes:
        for world in WORLDS:
            if kernel.problem.divides(shape.dims, world):
                assert plan(kernel, library, shape.name, world) <= names
