"""Does something with every shipped kernel on the simulator and tells a line for each."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pk_runtime.compiler import Compiler
from pk_runtime.execution import LocalExecutor
from pk_runtime.kernels import shipped, shipped_problems
from pk_runtime.simulator import Simulator

CACHE = Path(".pkforge") / "test-cache"


@dataclass(frozen=True)
class Built:
    """Kernel `number` of a problem, built for the simulator as `program`."""

    slug: str
    number: int
    program: Path
    simulator: Simulator


@dataclass(frozen=True)
class Total:
    """How much was done with all kernels, how much was wrong, and how long it took."""

    done: int
    wrong: int
    seconds: float


def examine_all(
    examine: Callable[[Built], tuple[int, list[str]]], what: str, problem: str | None
) -> Total:
    """`examine` gives how much it did and what was wrong; `what` names what it did.

    `problem` chooses one problem's kernels. BuildError if a kernel does not compile.
    """
    done, wrong, begun = 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        compiler, simulator = Compiler(CACHE), Simulator(LocalExecutor(), Path(folder))
        for slug in [problem] if problem else shipped_problems():
            for number, candidate in enumerate(shipped(slug)):
                program = compiler.simulator(candidate)
                count, texts = examine(Built(slug, number, program, simulator))
                done, wrong = done + count, wrong + len(texts)
                print(f"{slug} {number}: {count} {what}", *texts, sep="\n  ", flush=True)
    return Total(done, wrong, time.monotonic() - begun)
