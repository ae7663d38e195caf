"""GPU tests run where there are GPUs; elsewhere they are skipped for that reason alone."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from pk_runtime.compiler import BuildError, Compiler
from pk_runtime.gpu.cuda_api import DriverError
from pk_runtime.gpu.driver import capability, device_count
from tests.gpu import children
from tests.gpu.defects import DEFECTS, source
from tests.gpu.kernels import CACHE, WORLD, Kernel, build

T = TypeVar("T")

HOPPER = (9, 0)
READY_AT_ONCE = 8
SEEDS, LAUNCHES = 3, 1000
CHECKED, STRESSED, SIMULATED = ("tiny", "odd", "default"), ("tiny", "odd"), ("tiny", "odd")
DEADLINE_S = 90.0


@pytest.fixture(scope="session", autouse=True)
def needs_gpus() -> None:
    """Skips on a machine with fewer than four Hopper GPUs. Makes no context on any."""
    try:
        found = device_count()
        hoppers = sum(capability(device) == HOPPER for device in range(found))
    except DriverError:
        found = hoppers = 0
    if hoppers < WORLD:
        pytest.skip(f"needs {WORLD} Hopper GPUs; this machine has {found} GPUs")


def selected(items: list[pytest.Item], parameter: str, kind: type[T]) -> tuple[T, ...]:
    """The values of a parameter that the tests to be run have."""
    found: dict[T, None] = {}
    for item in items:
        callspec = getattr(item, "callspec", None)
        value = callspec.params.get(parameter) if callspec is not None else None
        if isinstance(value, kind):
            found[value] = None
    return tuple(found)


@pytest.fixture(scope="session")
def built(request: pytest.FixtureRequest, needs_gpus: None) -> Callable[[object], Path]:
    """The GPU library, or with `simulator` the simulator's program, of what the tests need.

    All of it is built at the first use, with one compiler per core.
    """
    kernels = [k.candidate for k in selected(request.session.items, "kernel", Kernel)]
    others = [source("ring"), source("raw_ring"), *(defect.candidate() for defect in DEFECTS)]
    compiler = Compiler(CACHE)
    libraries = build([*kernels, *others], compiler.library)
    programs = build((k for k in kernels if k.language == "pk"), compiler.simulator)

    def path(candidate: object, *, simulator: bool = False) -> Path:
        found = (programs if simulator else libraries)[candidate]  # type: ignore[index]
        if isinstance(found, BuildError):
            pytest.fail(f"it does not build:\n{found.log}")
        return found

    return path


@pytest.fixture(scope="session")
def examined(
    request: pytest.FixtureRequest, built: Callable[..., Path]
) -> Callable[[Kernel], children.Child]:
    """Everything that one child process finds about a kernel on four GPUs.

    All children run before the first test that asks, so that the GPUs are theirs: while one uses
    them the next ones import, draw inputs and simulate.
    """
    kernels = selected(request.session.items, "kernel", Kernel)

    def examine(kernel: Kernel) -> children.Child:
        shapes = [shape.name for shape in kernel.problem.shapes if shape.name in CHECKED]
        full = [shape.name for shape in kernel.problem.shapes if shape.kind == "bench"][:1]
        simulated = SIMULATED if kernel.candidate.language == "pk" else ()
        arguments = {
            "slug": kernel.slug,
            "library": str(built(kernel.candidate)),
            "program": str(built(kernel.candidate, simulator=True)) if simulated else "",
            "shapes": [*shapes, *full],
            "stressed": STRESSED,
            "simulated": simulated,
            "exact": not kernel.has_gemm,
            "seeds": SEEDS,
            "launches": LAUNCHES,
        }
        return children.run("examine", arguments, deadline_s=DEADLINE_S)

    with ThreadPoolExecutor(READY_AT_ONCE) as pool:
        pending = {kernel: pool.submit(examine, kernel) for kernel in kernels}

    def of(kernel: Kernel) -> children.Child:
        return pending[kernel].result()

    return of
