"""Problem 99: reduce-scatter along the last dimension."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pk_runtime.baseline import BaselineWork
from problems.collectives import reduce_scatter
from problems.contract import Costs, Dims, OutputSpec, Problem, Tensors, bench, check


class ReduceScatterLastDim(Problem):
    """y = this rank's columns of the sum of x over all ranks."""

    number, slug, category = 99, "reducescatter_last_dim", "Collective"
    title = "Reduce-scatter along the last dimension"
    statement = """Every rank holds x[M, W*N] in bf16. Rank r returns y[M, N] in bf16: columns r*N
to (r+1)*N of the sum of x over all ranks."""
    tolerance, peak = "T1", "fp32"
    input_names, output_names = ("x",), ("y",)
    shapes = (
        check("tiny", M=64, N=64),
        check("odd", M=33, N=136),
        check("default", M=1024, N=1024),
        bench(M=8192, N=1024),
        bench(M=8192, N=4096),
        bench(M=1024, N=512),
    )

    def input_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        return {"x": self.spec(dims["M"], world_size * dims["N"])}

    def output_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        return {"y": self.spec(dims["M"], dims["N"])}

    def reference(self, group: dist.ProcessGroup, x: Tensor) -> Tensors:
        rows, world_size = x.shape[0], group.size()
        parts = x.reshape(rows, world_size, -1).transpose(0, 1).contiguous()
        y = torch.empty_like(parts[0])
        reduce_scatter(y, parts.reshape(world_size * rows, -1), group)
        return {"y": y}

    def golden(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        total = inputs[0]["x"].double()
        for rank in inputs[1:]:
            total += rank["x"]
        return [{"y": columns} for columns in total.chunk(len(inputs), dim=1)]

    def costs(self, dims: Dims, world_size: int) -> Costs:
        size, others = dims["M"] * dims["N"], world_size - 1
        work = BaselineWork(None, "reduce_scatter", 2 * size, copies=(world_size * 2 * size,))
        return Costs(others * size, others * 2 * size, (1 + world_size) * 2 * size, work)
