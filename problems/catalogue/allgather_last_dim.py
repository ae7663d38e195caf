"""Problem 98: all-gather along the last dimension."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pk_runtime.baseline import BaselineWork
from problems.collectives import all_gather
from problems.contract import Costs, Dims, OutputSpec, Problem, Tensors, bench, by_rank, check


class AllGatherLastDim(Problem):
    """y = x of all ranks side by side, on every rank."""

    number, slug, category = 98, "allgather_last_dim", "Collective"
    title = "All-gather along the last dimension"
    statement = """Every rank holds x[M, N] in bf16. Every rank returns y[M, W*N] in bf16, the x of
every rank side by side: columns r*N to (r+1)*N of y are x_r, bit for bit."""
    tolerance, peak = "T0", "fp32"
    input_names, output_names = ("x",), ("y",)
    peer_dims = by_rank(y=1)
    shapes = (
        check("tiny", M=64, N=64),
        check("odd", M=33, N=136),
        check("default", M=1024, N=1024),
        bench(M=8192, N=1024),
        bench(M=8192, N=4096),
        bench(M=1024, N=512),
    )

    def input_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        return {"x": self.spec(dims["M"], dims["N"])}

    def output_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        return {"y": self.spec(dims["M"], world_size * dims["N"])}

    def reference(self, group: dist.ProcessGroup, x: Tensor) -> Tensors:
        parts = x.new_empty(group.size(), *x.shape)
        all_gather(parts, x, group)
        return {"y": parts.transpose(0, 1).reshape(x.shape[0], -1)}

    def golden(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        y = torch.cat([rank["x"] for rank in inputs], dim=1)
        return [{"y": y} for _ in inputs]

    def costs(self, dims: Dims, world_size: int) -> Costs:
        shard = 2 * dims["M"] * dims["N"]
        work = BaselineWork(None, "all_gather", shard, copies=(world_size * shard,))
        return Costs(0, (world_size - 1) * shard, (1 + world_size) * shard, work)
