"""Problem 7: reduce-scatter."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from pk_runtime.baseline import BaselineWork
from problems.collectives import reduce_scatter
from problems.contract import Costs, Dims, OutputSpec, Problem, Tensors, bench, check


class ReduceScatter(Problem):
    """y = this rank's rows of the sum of x over all ranks."""

    number, slug, title, category = 7, "reducescatter", "Reduce-scatter", "Collective"
    statement = """Every rank holds x[W*M, N] in bf16. Rank r returns y[M, N] in bf16: rows r*M to
(r+1)*M of the sum of x over all ranks."""
    tolerance, peak = "T1", "fp32"
    input_names, output_names = ("x",), ("y",)
    shapes = (
        check("tiny", M=64, N=64),
        check("odd", M=33, N=129),
        check("default", M=1024, N=1024),
        bench(M=8192, N=4096),
        bench(M=2048, N=4096),
        bench(M=1024, N=512),
        bench(M=32768, N=8192),
    )

    def input_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        return {"x": self.spec(world_size * dims["M"], dims["N"])}

    def output_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        return {"y": self.spec(dims["M"], dims["N"])}

    def reference(self, group: dist.ProcessGroup, x: Tensor) -> Tensors:
        y = x.new_empty(x.shape[0] // group.size(), x.shape[1])
        reduce_scatter(y, x, group)
        return {"y": y}

    def golden(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        total = inputs[0]["x"].double()
        for rank in inputs[1:]:
            total += rank["x"]
        return [{"y": rows} for rows in total.chunk(len(inputs))]

    def costs(self, dims: Dims, world_size: int) -> Costs:
        size, others = dims["M"] * dims["N"], world_size - 1
        work = BaselineWork(None, "reduce_scatter", 2 * size)
        return Costs(others * size, others * 2 * size, (1 + world_size) * 2 * size, work)
