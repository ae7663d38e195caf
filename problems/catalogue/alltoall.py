"""Problem 8: all-to-all."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pk_runtime.baseline import BaselineWork
from problems.contract import Costs, Dims, OutputSpec, Problem, Tensors, bench, by_rank, check


class AllToAll(Problem):
    """y[s] = x_s[rank]: every rank sends one part to each rank."""

    number, slug, title, category = 8, "alltoall", "All-to-all", "Collective"
    statement = """Every rank holds x[W, M, N] in bf16; x[d] is for rank d. Every rank returns
y[W, M, N] in bf16, the parts meant for it in the order of their senders: y[s] = x_s[rank], bit for
bit."""
    tolerance, peak = "T0", "fp32"
    input_names, output_names = ("x",), ("y",)
    peer_dims = by_rank(y=0)
    shapes = (
        check("tiny", M=64, N=64),
        check("odd", M=33, N=129),
        check("default", M=1024, N=1024),
        bench(M=8192, N=4096),
        bench(M=1024, N=1024),
        bench(M=32768, N=8192),
    )

    def input_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        return {"x": self.spec(world_size, dims["M"], dims["N"])}

    def output_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        return {"y": self.spec(world_size, dims["M"], dims["N"])}

    def reference(self, group: dist.ProcessGroup, x: Tensor) -> Tensors:
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x, group=group)
        return {"y": y}

    def golden(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        parts = [rank["x"] for rank in inputs]
        return [{"y": torch.stack([x[rank] for x in parts])} for rank in range(len(inputs))]

    def costs(self, dims: Dims, world_size: int) -> Costs:
        part = 2 * dims["M"] * dims["N"]
        work = BaselineWork(None, "all_to_all", world_size * part)
        return Costs(0, (world_size - 1) * part, 2 * world_size * part, work)
