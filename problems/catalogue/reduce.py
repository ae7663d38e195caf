"""Problem 4: reduce."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from pk_runtime.baseline import BaselineWork
from problems.contract import Costs, Dims, OutputSpec, Problem, Tensors, bench, check


class Reduce(Problem):
    """y = the sum of x over all ranks on rank 0, x elsewhere."""

    number, slug, title, category = 4, "reduce", "Reduce", "Collective"
    statement = """Every rank holds x[M, N] in bf16. Rank 0, the root, returns y[M, N] in bf16, the
sum of x over all ranks: y = x_0 + x_1 + ... + x_(W-1). Every other rank r returns its own x, bit
for bit: y = x_r."""
    tolerance, peak = "T1", "fp32"
    input_names, output_names = ("x",), ("y",)
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
        return {"y": self.spec(dims["M"], dims["N"])}

    def reference(self, group: dist.ProcessGroup, x: Tensor) -> Tensors:
        y = x.clone()
        dist.reduce(y, group=group, group_dst=0)
        # Backends may leave partial sums in the tensors of the other ranks.
        return {"y": y if group.rank() == 0 else x.clone()}

    def golden(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        total = inputs[0]["x"].double()
        for rank in inputs[1:]:
            total += rank["x"]
        return [{"y": total}, *({"y": rank["x"].double()} for rank in inputs[1:])]

    def costs(self, dims: Dims, world_size: int) -> Costs:
        size = dims["M"] * dims["N"]
        # Nearest measured: the reduce-scatter that brings as many bytes into each rank.
        work = BaselineWork(None, "reduce_scatter", max(1, 2 * size // (world_size - 1)))
        return Costs(size, 2 * size, 2 * 2 * size, work)
