"""GPU tests run where there are GPUs; elsewhere they are skipped for that reason alone.

They have as many ranks as the node has Hopper GPUs, 4 or 2, and end in time: from the first one on
all have GPU_TEST_SECONDS together, of which every wait in a child process takes its part. What is
not run by then fails and says so. Cheap and telling tests come first.
"""

import os
import signal
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import TypeVar

import pytest

from pk_runtime.compiler import BuildError, Compiler
from tests.gpu import budget, children
from tests.gpu.defects import DEFECTS, source
from tests.gpu.kernels import CACHE, FEWEST_RANKS, Kernel, build, hoppers, world

T = TypeVar("T")

# The node's 8 minutes less what starting and stopping take.
SECONDS = float(os.environ.get("GPU_TEST_SECONDS", "450"))
ORDER = (
    *("test_sandbox", "test_smoke", "test_defects", "test_timeline", "test_shipped_kernels"),
    *("test_judge", "test_ranks", "test_sanitizer", "test_triton"),
)
READY_AT_ONCE = 8
SEEDS, LAUNCHES = 3, 1000
CHECKED, STRESSED, SIMULATED = ("tiny", "odd", "default"), ("odd",), ("tiny", "odd")
CROWDED = ("tiny", "odd")  # two ranks on every GPU
FULL = "full"  # the first shape that the problem is timed at
DEADLINE_S = 40.0

_interruptible = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The GPU tests by ORDER, in the places that GPU tests had before."""
    names = [item.path.stem if item.path.parent == Path(__file__).parent else "" for item in items]
    places = [place for place, name in enumerate(names) if name in ORDER]
    ordered = [items[at] for at in sorted(places, key=lambda at: ORDER.index(names[at]))]
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


@pytest.hookimpl(wrapper=True, trylast=True)  # logging is set up by then
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Starts the clock at the first test on a machine with GPUs; fails what comes too late."""
    if not budget.started() and hoppers()[0] >= FEWEST_RANKS:
        budget.start(SECONDS)
        if not item.config.pluginmanager.hasplugin("timeout"):  # which has the alarm for itself
            signal.signal(signal.SIGALRM, _out_of_time)
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
    if not budget.left():
        pytest.fail(f"{children.NO_TIME}: {SECONDS:g} s are over", pytrace=False)
    yield from _in_time()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """A test that runs when the time is over is stopped."""
    yield from _in_time()


def _in_time() -> Generator[None, None, None]:
    global _interruptible
    _interruptible = True
    try:
        yield
    finally:
        _interruptible = False


def _out_of_time(_signal: int, _frame: FrameType | None) -> None:
    if _interruptible:
        pytest.fail(f"stopped when {SECONDS:g} s for all tests were over", pytrace=False)


@pytest.fixture(scope="session", autouse=True)
def needs_gpus() -> None:
    """Skips on a machine with fewer than two Hopper GPUs. Makes no context on any."""
    usable, found = hoppers()
    if usable < FEWEST_RANKS:
        pytest.skip(f"needs {FEWEST_RANKS} Hopper GPUs; this machine has {found} GPUs")


def selected(items: list[pytest.Item], parameter: str, kind: type[T]) -> tuple[T, ...]:
    """The values of a parameter that the tests to be run have."""
    found: dict[T, None] = {}
    for item in items:
        callspec = getattr(item, "callspec", None)
        value = callspec.params.get(parameter) if callspec is not None else None
        if isinstance(value, kind):
            found[value] = None
    return tuple(found)


def shapes_asked(items: list[pytest.Item]) -> dict[Kernel, tuple[set[str], ...]]:
    """By kernel the shapes that the tests to be run check, stress, simulate and crowd."""
    tests = (
        "test_right_and_deterministic",
        "test_a_thousand_launches",
        "test_the_same_source_gives_the_same_in_the_simulator",
        "test_right_with_two_ranks_on_a_gpu",
    )
    found: dict[Kernel, tuple[set[str], ...]] = {}
    for item in items:
        name = getattr(item, "originalname", "")
        if name in tests:
            values = item.callspec.params  # type: ignore[attr-defined]
            of = found.setdefault(values["kernel"], (set(), set(), set(), set()))
            of[tests.index(name)].add(values["shape"])
    return found


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
    """Everything that one child process finds about a kernel on all GPUs, as far as tests ask.

    All children run before the first test that asks, so that the GPUs are theirs: while one uses
    them the next ones import, draw inputs and simulate.
    """
    asked = shapes_asked(request.session.items)

    def examine(kernel: Kernel) -> children.Child:
        checked, stressed, simulated, crowded = asked[kernel]
        known = {shape.name for shape in kernel.problem.shapes}
        full = [shape.name for shape in kernel.problem.shapes if shape.kind == "bench"][:1]
        small = [name for name in CHECKED if name in known & (checked | stressed | simulated)]
        arguments = {
            "slug": kernel.slug,
            "library": str(built(kernel.candidate)),
            "program": str(built(kernel.candidate, simulator=True)) if simulated else "",
            "shapes": [*small, *(full if FULL in checked else ())],
            "stressed": sorted(stressed),
            "simulated": sorted(simulated),
            "exact": not kernel.has_gemm,
            "seeds": SEEDS,
            "launches": LAUNCHES,
            "world": world(),
            "crowded": sorted(crowded),
        }
        return children.run("examine", arguments, deadline_s=DEADLINE_S)

    with ThreadPoolExecutor(READY_AT_ONCE) as pool:
        pending = {kernel: pool.submit(examine, kernel) for kernel in asked}

    def of(kernel: Kernel) -> children.Child:
        return pending[kernel].result()

    return of
