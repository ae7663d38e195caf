"""Problem 13: GEMM + all-reduce."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pk_runtime.baseline import BaselineWork
from problems.contract import Costs, Dims, OutputSpec, Problem, Tensors, bench, check


class GemmAllReduce(Problem):
    """c = the sum of a @ b over all ranks, on every rank (row-parallel linear layer)."""

    number, slug, title = 13, "gemm_allreduce", "GEMM + all-reduce"
    category = "Tensor"
    statement = """Every rank holds a[M, K] and b[K, N] in bf16; K is the rank's own part of the
contraction. Every rank returns c[M, N] in bf16, the sum over all ranks of a @ b:
c = a_0 @ b_0 + ... + a_(W-1) @ b_(W-1)."""
    tolerance = "T1"
    input_names, output_names = ("a", "b"), ("c",)
    shapes = (
        check("tiny", M=64, N=64, K=64),
        check("odd", M=33, N=136, K=72),
        check("default", M=1024, N=1024, K=512),
        bench(M=8192, N=8192, K=2048),
        bench(M=64, N=8192, K=7168),
        bench(M=2048, N=8192, K=7168),
        bench(M=8192, N=8192, K=7168),
    )

    def input_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        return {"a": self.spec(dims["M"], dims["K"]), "b": self.spec(dims["K"], dims["N"])}

    def output_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        return {"c": self.spec(dims["M"], dims["N"])}

    def input_std(self, name: str, dims: Dims, world_size: int) -> float:
        return float((world_size * dims["K"]) ** -0.5) if name == "b" else 1.0

    def reference(self, group: dist.ProcessGroup, a: Tensor, b: Tensor) -> Tensors:
        c = torch.matmul(a, b)
        dist.all_reduce(c, group=group)
        return {"c": c}

    def golden(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        c = inputs[0]["a"].double() @ inputs[0]["b"].double()
        for rank in inputs[1:]:
            c += rank["a"].double() @ rank["b"].double()
        return [{"c": c} for _ in inputs]

    def costs(self, dims: Dims, world_size: int) -> Costs:
        m, n, k = dims["M"], dims["N"], dims["K"]
        work = BaselineWork((m, n, k), "all_reduce", 2 * m * n)
        nvlink = 2 * (world_size - 1) / world_size * 2 * m * n
        return Costs(2 * m * n * k, nvlink, 2 * (m * k + k * n + m * n), work)
