"""The contract of a problem: one operator on W ranks, with everything needed to judge a kernel.

A problem is one short file with one subclass of `Problem` (docs/problems.md shows how to write
one). It says what every rank gets and returns, how PyTorch and `torch.distributed` compute it,
what the exact result is, how exact a kernel must be, on which shapes, and what it costs at least.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from pk_runtime.baseline import BaselineWork
from problems.errors import UnknownShape

Dims = Mapping[str, int]
Tensors = dict[str, Tensor]
ShapeKind = Literal["check", "bench"]
Peak = Literal["fp8", "bf16", "tf32", "fp32", "fp64"]

# T0: bit-exact (copies, permutations, integers). T1: bf16 and fp16 results, T2: fp32 results,
# T3: fp64 results, each against the fp64 golden. The rules are in problems/answers/tolerance.py.
Tolerance = Literal["T0", "T1", "T2", "T3"]

# Names of the check shapes that the judge draws itself (problems/hidden.py), the small one first.
HIDDEN = ("hidden_1", "hidden_2")


@dataclass(frozen=True)
class Shape:
    """One size of a problem: `dims` are the problem's global letters, such as M, N and K.

    `check` shapes are computed and compared at world sizes 2 and 4, `bench` shapes are timed.
    """

    name: str
    dims: Dims
    kind: ShapeKind


@dataclass(frozen=True)
class OutputSpec:
    """Shape and dtype of one tensor on one rank."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Costs:
    """Lower bounds of the busiest rank, at the cheapest algorithm known without multicast.

    `nvlink_bytes` are those it must send or receive, whichever is more; `hbm_bytes` those it must
    read and write: inputs once, outputs once. `baseline` is what PyTorch and NCCL do instead.
    """

    flops: float
    nvlink_bytes: float
    hbm_bytes: float
    baseline: BaselineWork


def check(name: str, **dims: int) -> Shape:
    """A shape for correctness: `check("tiny", M=64, N=64)`."""
    return Shape(name, dims, "check")


def bench(**dims: int) -> Shape:
    """A shape to time, named after its dims: `bench(M=8192, N=4096)` is "m8192n4096"."""
    return Shape("".join(f"{letter.lower()}{size}" for letter, size in dims.items()), dims, "bench")


def by_rank(**dims: int) -> Mapping[str, int]:
    """Which dimension of an output has one part per rank, for `Problem.peer_dims`."""
    return MappingProxyType(dims)


class Problem(ABC):
    """An operator on W ranks. Subclasses set the attributes and implement the abstract methods.

    `number` is the catalogue's number, None for a custom problem. `statement` is plain text for
    people and models and names every tensor with its per-rank shape. `input_names` and
    `output_names` are the names that kernels bind to; the inputs are the keyword arguments of
    `reference`. `sharded` names the letters that must be multiples of W, `replicated` the inputs
    that are equal on all ranks, `mutates` those that a kernel may overwrite. `peak` is the compute
    rate that `flops` are counted against. `peer_dims` is for outputs made of W equal parts of which
    part r comes from rank r: the dimension of the parts, by output name. `scales` is for a problem
    that means something only where its inputs are of about one size: the lowest and the highest k
    of the powers 2^k that they are multiplied by, (0, 0) for never. By default what the narrowest
    dtype bears, see `problems.scales`.
    """

    number: int | None = None
    slug: str
    title: str
    category: str
    statement: str
    tolerance: Tolerance
    shapes: tuple[Shape, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    dtype: torch.dtype = torch.bfloat16
    sharded: tuple[str, ...] = ()
    mutates: frozenset[str] = frozenset()
    replicated: frozenset[str] = frozenset()
    peak: Peak = "bf16"
    peer_dims: Mapping[str, int] = {}
    scales: tuple[int, int] | None = None

    @abstractmethod
    def input_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        """Shape and dtype of every input on one rank, by name."""

    @abstractmethod
    def output_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        """Shape and dtype of every output on one rank, by name."""

    @abstractmethod
    def reference(self, group: dist.ProcessGroup, *args: Any, **inputs: Any) -> Tensors:
        """The operator in plain PyTorch on one rank: `reference(group, a=..., b=...)`.

        Real `torch.distributed` calls on `group`, which the caller makes and owns: threads of one
        process on a CPU, gloo, or NCCL. Take the rank and the world size from `group.rank()` and
        `group.size()`, name peers by `group_src` and `group_dst`, and use `problems.collectives`
        for the calls whose names differ between torch versions.
        """

    @abstractmethod
    def golden(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        """The exact result of every rank from the inputs of all ranks.

        In fp64; in the output's own dtype where the tolerance is T0. Ranks with equal results may
        share one tensor.
        """

    @abstractmethod
    def costs(self, dims: Dims, world_size: int) -> Costs:
        """What the operator costs at least, and what PyTorch and NCCL do for it."""

    def flops(self, dims: Dims, world_size: int) -> float:
        """Floating-point operations of the busiest rank at the cheapest algorithm known."""
        return self.costs(dims, world_size).flops

    def nvlink_bytes(self, dims: Dims, world_size: int) -> float:
        """Bytes that the busiest rank must send or receive, whichever is more; no multicast."""
        return self.costs(dims, world_size).nvlink_bytes

    def hbm_bytes(self, dims: Dims, world_size: int) -> float:
        """Bytes that the busiest rank must read and write: inputs once, outputs once."""
        return self.costs(dims, world_size).hbm_bytes

    def baseline(self, dims: Dims, world_size: int) -> BaselineWork:
        """What PyTorch and NCCL do for it: the GEMM of one rank, the collective, the copies."""
        return self.costs(dims, world_size).baseline

    def admits(self, dims: Dims) -> bool:
        """Whether the operator takes these sizes. All, unless letters depend on each other.

        Asked of check shapes that the judge draws itself; see problems/hidden.py.
        """
        return True

    def contributors(self, world_size: int) -> Sequence[int]:
        """The ranks whose inputs matter to others: all, unless the problem has a root.

        The task lint wants the result to be wrong without any one of them.
        """
        return range(world_size)

    def make_inputs(self, rank: int, world_size: int, seed: int, dims: Dims) -> Tensors:
        """The inputs of one rank on the CPU: the same for the same arguments, on any machine.

        By default normal random numbers of `input_std`; a problem with integer inputs overrides
        this. Ranks draw independently, which has the same distribution as slicing a global draw.
        """
        return {
            name: self.draw(name, spec, rank, seed, std=self.input_std(name, dims, world_size))
            for name, spec in self.input_specs(dims, world_size).items()
        }

    def input_std(self, name: str, dims: Dims, world_size: int) -> float:
        """Standard deviation of an input; choose it so that outputs have an rms near 1."""
        return 1.0

    def draw(
        self, name: str, spec: OutputSpec, rank: int, seed: int, *, std: float = 1.0
    ) -> Tensor:
        """Normal random numbers of `spec`, from a generator of this input, rank and seed alone."""
        values = torch.randn(spec.shape, generator=self.generator(name, rank, seed))
        return values.mul_(std).to(spec.dtype)

    def generator(self, name: str, rank: int, seed: int) -> torch.Generator:
        """A CPU generator seeded by problem, input, rank and seed; not by rank if replicated."""
        source = "all" if name in self.replicated else str(rank)
        key = f"{self.slug}/{name}/{source}/{seed}".encode()
        number = int.from_bytes(hashlib.sha256(key).digest()[:8], "little") >> 1
        return torch.Generator().manual_seed(number)

    def shape(self, name: str) -> Shape:
        """The shape of that name. Raises UnknownShape, which lists the known ones."""
        for shape in self.shapes:
            if shape.name == name:
                return shape
        raise UnknownShape(self.slug, name, [shape.name for shape in self.shapes])

    def divides(self, dims: Dims, world_size: int) -> bool:
        """Whether the sharded letters of `dims` are multiples of the world size."""
        return all(dims[letter] % world_size == 0 for letter in self.sharded)

    def spec(self, *shape: int) -> OutputSpec:
        """A tensor of the problem's dtype."""
        return OutputSpec(shape, self.dtype)
