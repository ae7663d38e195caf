"""Problem 16: GEMM + reduce-scatter."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pk_runtime.baseline import BaselineWork
from problems.collectives import reduce_scatter
from problems.contract import Costs, Dims, OutputSpec, Problem, Tensors, bench, check


class GemmReduceScatter(Problem):
    """c = this rank's rows of the sum of a @ b over all ranks."""

    number, slug, title = 16, "gemm_reducescatter", "GEMM + reduce-scatter"
    category = "Tensor"
    statement = """Every rank holds a[M, K/W] and b[K/W, N] in bf16, its part of the contraction.
Rank r returns c[M/W, N] in bf16: rows r*M/W to (r+1)*M/W of the sum over all ranks of a @ b."""
    tolerance = "T1"
    sharded = ("M", "K")
    input_names, output_names = ("a", "b"), ("c",)
    shapes = (
        check("tiny", M=64, N=64, K=128),
        check("odd", M=100, N=129, K=132),
        check("default", M=1024, N=1024, K=512),
        bench(M=8192, N=8192, K=8192),
        bench(M=64, N=7168, K=18432),
        bench(M=2048, N=2880, K=2880),
        bench(M=8192, N=8192, K=29568),
    )

    def input_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        k = dims["K"] // world_size
        return {"a": self.spec(dims["M"], k), "b": self.spec(k, dims["N"])}

    def output_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        return {"c": self.spec(dims["M"] // world_size, dims["N"])}

    def input_std(self, name: str, dims: Dims, world_size: int) -> float:
        return float(dims["K"] ** -0.5) if name == "b" else 1.0

    def reference(self, group: dist.ProcessGroup, a: Tensor, b: Tensor) -> Tensors:
        c = a.new_empty(a.shape[0] // group.size(), b.shape[1])
        reduce_scatter(c, torch.matmul(a, b), group)
        return {"c": c}

    def golden(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        c = inputs[0]["a"].double() @ inputs[0]["b"].double()
        for rank in inputs[1:]:
            c += rank["a"].double() @ rank["b"].double()
        return [{"c": rows} for rows in c.chunk(len(inputs))]

    def costs(self, dims: Dims, world_size: int) -> Costs:
        m, n, k = dims["M"], dims["N"], dims["K"] // world_size
        work = BaselineWork((m, n, k), "reduce_scatter", 2 * m * n // world_size)
        nvlink = (world_size - 1) / world_size * 2 * m * n
        return Costs(2 * m * n * k, nvlink, 2 * (m * k + k * n + m * n / world_size), work)
