"""Problem 2: all-gather."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pk_runtime.baseline import BaselineWork
from problems.collectives import all_gather
from problems.contract import Costs, Dims, OutputSpec, Problem, Tensors, bench, by_rank, check


class AllGather(Problem):
    """y[r] = x of rank r, on every rank."""

    number, slug, title, category = 2, "allgather", "All-gather", "Collective"
    statement = """Every rank holds x[M, N] in bf16. Every rank returns y[W, M, N] in bf16, the x of
every rank in rank order: y[r] = x_r, bit for bit."""
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
        return {"x": self.spec(dims["M"], dims["N"])}

    def output_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        return {"y": self.spec(world_size, dims["M"], dims["N"])}

    def reference(self, group: dist.ProcessGroup, x: Tensor) -> Tensors:
        y = x.new_empty(group.size(), *x.shape)
        all_gather(y, x, group)
        return {"y": y}

    def golden(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        y = torch.stack([rank["x"] for rank in inputs])
        return [{"y": y} for _ in inputs]

    def costs(self, dims: Dims, world_size: int) -> Costs:
        shard = 2 * dims["M"] * dims["N"]
        work = BaselineWork(None, "all_gather", shard)
        return Costs(0, (world_size - 1) * shard, shard * (1 + world_size), work)
