"""One row on one rank: its inputs in as many copies as outlast the L2, and the exact result."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pk_runtime.gpu.symmetric import SymmetricHeap
from problems.collectives import all_gather
from problems.contract import Problem
from problems.registry import get

ROTATE_FROM_BYTES = 4 << 20  # smaller inputs stay in L2 in real programs too
L2_MULTIPLE = 3
MAX_SETS = 40
ERROR_LIMIT = 5e-3  # relative; bf16 with fp32 sums has about 2e-3, W - 1 roundings a little more

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Ranks:
    """What a rank has to work with: NCCL's group, and the heap, over which the ranks also talk."""

    rank: int
    world: int
    group: dist.ProcessGroup
    heap: SymmetricHeap


class Case:
    """A problem at one size. `sets` are input sets: a call that runs again takes the next one."""

    def __init__(self, ranks: Ranks, problem: str, dims: Mapping[str, int], key: str) -> None:
        self.ranks, self.key, self.dims = ranks, key, dict(dims)
        self.problem: Problem = get(problem)
        if not self.problem.divides(self.dims, ranks.world):
            letters = ", ".join(self.problem.sharded)
            raise ValueError(f"{letters} must be multiples of {ranks.world}")
        self.inputs = self.problem.input_specs(self.dims, ranks.world)
        self.outputs = self.problem.output_specs(self.dims, ranks.world)
        nbytes = sum(math.prod(s.shape) * s.dtype.itemsize for s in self.inputs.values())
        l2 = int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 50 << 20))
        self.sets: list[dict[str, Tensor]] = [
            self._draw(number) for number in range(set_count(nbytes, l2))
        ]
        self.golden = self._exact()

    def error(self, got: Tensors) -> float:
        """How wrong a result for set 0 is: relative error of the worst output, 0 if exact.

        Infinite where a result that must be bit-exact is not; NaN where a result is NaN.
        """
        worst = 0.0
        for name, exact in self.golden.items():
            mine = got[name].reshape(exact.shape)
            if self.problem.tolerance == "T0":
                worst = max(worst, 0.0 if torch.equal(mine, exact.to(mine.dtype)) else math.inf)
                continue
            difference = float((mine.float() - exact).norm() / exact.norm().clamp_min(1e-30))
            worst = max(worst, difference) if difference == difference else math.nan
            if worst != worst:
                return math.nan
        return worst

    def gemm(self) -> tuple[int, int, int] | None:
        """(m, n, k) of the GEMM that one rank computes, if there is one."""
        return self.problem.baseline(self.dims, self.ranks.world).gemm

    def _draw(self, number: int) -> dict[str, Tensor]:
        """A set of inputs of the problem's distribution, from the rank and the set's number."""
        drawn = {}
        for place, (name, spec) in enumerate(self.inputs.items()):
            source = 0 if name in self.problem.replicated else self.ranks.rank + 1
            generator = torch.Generator(f"cuda:{self.ranks.rank}")
            generator.manual_seed((number * 64 + place) * 64 + source)
            values = torch.randn(spec.shape, device=generator.device, generator=generator)
            std = self.problem.input_std(name, self.dims, self.ranks.world)
            drawn[name] = values.mul_(std).to(spec.dtype)
        return drawn

    def _exact(self) -> dict[str, Tensor]:
        """This rank's exact result for set 0, in fp32, from the inputs of all ranks."""
        gathered: list[dict[str, Any]] = [{} for _ in range(self.ranks.world)]
        for name, mine in self.sets[0].items():
            everyone = mine.new_empty(self.ranks.world, *mine.shape)
            all_gather(everyone, mine, self.ranks.group)
            for rank, theirs in enumerate(everyone):
                gathered[rank][name] = theirs
        exact = self.problem.golden(gathered)[self.ranks.rank]
        kept = {name: value.float().clone() for name, value in exact.items()}
        del gathered, exact
        torch.cuda.empty_cache()
        return kept


def set_count(nbytes: int, l2_bytes: int) -> int:
    """How many input sets of that size are used by turns."""
    if nbytes < ROTATE_FROM_BYTES:
        return 1
    return max(1, min(MAX_SETS, -(-L2_MULTIPLE * l2_bytes // nbytes)))
