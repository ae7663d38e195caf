"""Problem 1: all-reduce."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from pk_runtime.baseline import BaselineWork
from problems.contract import Costs, Dims, OutputSpec, Problem, Tensors, bench, check


class AllReduce(Problem):
    """y = the sum of x over all ranks, on every rank."""

    number, slug, title, category = 1, "allreduce", "All-reduce", "Collective"
    statement = """Every rank holds x[M, N] in bf16. Every rank returns y[M, N] in bf16, the sum of
x over all ranks: y = x_0 + x_1 + ... + x_(W-1)."""
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
        dist.all_reduce(y, group=group)
        return {"y": y}

    def golden(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        total = inputs[0]["x"].double()
        for rank in inputs[1:]:
            total += rank["x"]
        return [{"y": total} for _ in inputs]

    def costs(self, dims: Dims, world_size: int) -> Costs:
        size, share = dims["M"] * dims["N"], (world_size - 1) / world_size
        work = BaselineWork(None, "all_reduce", 2 * size)
        return Costs(share * size, 2 * share * 2 * size, 2 * 2 * size, work)
