"""Shipped kernels and the raw examples on the GPUs: right, and the same bits every time.

One child process per kernel does it all (checks.examine); the tests read what it found.
"""

from collections.abc import Callable

import pytest

from tests.gpu import children
from tests.gpu.conftest import CHECKED, CROWDED, FULL, SIMULATED, STRESSED
from tests.gpu.kernels import EXAMPLES, Kernel, all_kernels, world

SHIPPED = [pytest.param(kernel, id=str(kernel)) for kernel in all_kernels()]
KERNELS = [*SHIPPED, *(pytest.param(kernel, id=str(kernel)) for kernel in EXAMPLES)]
Examined = Callable[[Kernel], children.Child]


def found(child: children.Child, event: str, shape: str) -> str:
    """What is wrong in one respect, or why the child did not come so far."""
    for said in child.of(event):
        if said["shape"] == shape:
            return str(said["wrong"])
    return f"not reached: {child.trouble or 'no such event'}\n{child.stderr[-2000:]}"


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", [*CHECKED, FULL])
def test_right_and_deterministic(kernel: Kernel, shape: str, examined: Examined) -> None:
    """Within the problem's tolerance for every seed; a seed has the same bits every time."""
    problem = kernel.problem
    if shape == FULL:
        shape = next(s.name for s in problem.shapes if s.kind == "bench")
    if not problem.divides(problem.shape(shape).dims, world()):
        pytest.skip(f"{shape} does not split over {world()} ranks")
    assert found(examined(kernel), "shape", shape) == ""


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", STRESSED)
@pytest.mark.parametrize("event", ["back to back", "skewed"])
def test_a_thousand_launches(kernel: Kernel, event: str, shape: str, examined: Examined) -> None:
    """Bare ones, and ones with late ranks and changing inputs: no wrong bit, nobody waits."""
    assert found(examined(kernel), event, shape) == ""


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", CROWDED)
def test_right_with_two_ranks_on_a_gpu(kernel: Kernel, shape: str, examined: Examined) -> None:
    """Four ranks on a node with two GPUs, eight on one with four."""
    if not kernel.problem.divides(kernel.problem.shape(shape).dims, 2 * world()):
        pytest.skip(f"{shape} does not split over {2 * world()} ranks")
    assert found(examined(kernel), "crowded", shape) == ""


@pytest.mark.parametrize("kernel", SHIPPED)
@pytest.mark.parametrize("shape", SIMULATED)
def test_the_same_source_gives_the_same_in_the_simulator(
    kernel: Kernel, shape: str, examined: Examined
) -> None:
    """Every bit; kernels with a GEMM, whose tensor cores add in another order, within tolerance."""
    assert found(examined(kernel), "simulator", shape) == ""
