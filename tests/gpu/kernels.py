"""The shipped kernels as the GPU tests see them, and how they are all built at once."""

import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import BuildError, Compiler
from pk_runtime.kernels import shipped
from problems.contract import Problem
from problems.registry import catalogue, get

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".pkforge" / "test-cache"
WORLD = 4


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
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return dict(zip(todo, pool.map(one, todo), strict=True))


def libraries(kernels: Iterable[Kernel]) -> dict[Kernel, Path | BuildError]:
    """The GPU library of every kernel."""
    wanted = tuple(kernels)
    built = build((kernel.candidate for kernel in wanted), Compiler(CACHE).library)
    return {kernel: built[kernel.candidate] for kernel in wanted}
