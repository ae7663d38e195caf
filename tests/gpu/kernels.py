"""The shipped kernels as the GPU tests see them, and how they are all built at once."""

import functools
import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import BuildError, Compiler
from pk_runtime.gpu.cuda_api import DriverError
from pk_runtime.gpu.driver import capability, device_count
from pk_runtime.kernels import shipped
from pk_runtime.sheet import sheet_names
from problems.contract import Problem
from problems.registry import catalogue, get

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".pkforge" / "test-cache"
HOPPER = (9, 0)
MOST_RANKS, FEWEST_RANKS = 4, 2


@functools.cache
def hoppers() -> tuple[int, int]:
    """How many Hopper GPUs this machine has, and how many GPUs in all; makes no context on any."""
    try:
        found = device_count()
        return sum(capability(device) == HOPPER for device in range(found)), found
    except DriverError:
        return 0, 0


def world() -> int:
    """How many ranks the tests have: 4 where there are as many Hopper GPUs, else 2."""
    return MOST_RANKS if hoppers()[0] >= MOST_RANKS else FEWEST_RANKS


def sheet_name() -> str:
    """The shipped sheet of an H200 node with as many GPUs; one of more GPUs where there is none."""
    name = f"h200x{world()}"
    return name if name in sheet_names() else f"h200x{MOST_RANKS}"


@dataclass(frozen=True)
class Kernel:
    """Shipped kernel `number` of the problem `slug`, or an example of the documentation."""

    slug: str
    number: int
    example: str = ""

    @property
    def problem(self) -> Problem:
        """The problem that it solves."""
        return get(self.slug)

    @property
    def candidate(self) -> Candidate:
        """Its source, with default knobs."""
        if self.example:
            text = (ROOT / "docs" / "examples" / f"{self.example}.cu").read_text(encoding="utf-8")
            return Candidate("cuda", {"kernel.cu": text})
        return shipped(self.slug)[self.number]

    @property
    def name(self) -> str:
        """The struct that its file ends with: PK_KERNEL(name), PK_RAW(name)."""
        found = re.search(r"PK_(?:KERNEL|RAW)\((\w+)\)", self.candidate.source)
        return found[1] if found else str(self)

    @property
    def has_gemm(self) -> bool:
        """Whether it multiplies on tensor cores, which add in an order of their own."""
        return "mm::multiply(" in self.candidate.source

    def __str__(self) -> str:
        return self.example or f"{self.slug}-{self.number}"


# Raw CUDA candidates, which have no simulator.
EXAMPLES = (Kernel("allreduce", 0, "raw_allreduce"), Kernel("allgather", 0, "raw_allgather"))


def all_kernels() -> tuple[Kernel, ...]:
    """Every shipped kernel, by problem."""
    return tuple(
        Kernel(problem.slug, number)
        for problem in catalogue()
        for number in range(len(shipped(problem.slug)))
    )


def build(
    candidates: Iterable[Candidate], compiler: Callable[[Candidate], Path]
) -> dict[Candidate, Path | BuildError]:
    """Builds candidates in parallel, one compiler per core; a BuildError stands for its result."""

    def one(candidate: Candidate) -> Path | BuildError:
        try:
            return compiler(candidate)
        except BuildError as error:
            return error

    todo = tuple(dict.fromkeys(candidates))
    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        return dict(zip(todo, pool.map(one, todo), strict=True))
    finally:
        pool.shutdown(cancel_futures=True)  # who is interrupted does not wait for the rest


def libraries(kernels: Iterable[Kernel]) -> dict[Kernel, Path | BuildError]:
    """The GPU library of every kernel."""
    wanted = tuple(kernels)
    built = build((kernel.candidate for kernel in wanted), Compiler(CACHE).library)
    return {kernel: built[kernel.candidate] for kernel in wanted}
