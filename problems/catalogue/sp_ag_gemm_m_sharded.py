"""Problem 89: all-gather + GEMM, rows sharded."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pk_runtime.baseline import BaselineWork
from problems.collectives import all_gather
from problems.contract import Costs, Dims, OutputSpec, Problem, Tensors, bench, by_rank, check


class AllGatherGemm(Problem):
    """c = (the rows of a from all ranks) @ b (Megatron's column-parallel linear layer)."""

    number, slug, title = 89, "sp_ag_gemm_m_sharded", "All-gather + GEMM (rows sharded)"
    category = "Sequence"
    statement = """Every rank holds a[M/W, K] and b[K, N/W] in bf16: its rows of A, its columns of
B. Every rank returns c[M, N/W] in bf16: c = A @ b, where A[M, K] has the a of all ranks in rank
order, so that rows r*M/W to (r+1)*M/W of c come from rank r."""
    tolerance = "T1"
    sharded = ("M", "N")
    input_names, output_names = ("a", "b"), ("c",)
    peer_dims = by_rank(c=0)
    shapes = (
        check("tiny", M=64, N=64, K=64),
        check("odd", M=100, N=132, K=72),
        check("default", M=1024, N=1024, K=512),
        bench(M=8192, N=8192, K=8192),
        bench(M=2048, N=28672, K=8192),
        bench(M=8192, N=28672, K=8192),
    )

    def input_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        rows, columns = dims["M"] // world_size, dims["N"] // world_size
        return {"a": self.spec(rows, dims["K"]), "b": self.spec(dims["K"], columns)}

    def output_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        return {"c": self.spec(dims["M"], dims["N"] // world_size)}

    def input_std(self, name: str, dims: Dims, world_size: int) -> float:
        return float(dims["K"] ** -0.5) if name == "b" else 1.0

    def reference(self, group: dist.ProcessGroup, a: Tensor, b: Tensor) -> Tensors:
        rows = a.new_empty(a.shape[0] * group.size(), a.shape[1])
        all_gather(rows, a, group)
        return {"c": torch.matmul(rows, b)}

    def golden(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        a = torch.cat([rank["a"] for rank in inputs]).double()
        return [{"c": a @ rank["b"].double()} for rank in inputs]

    def costs(self, dims: Dims, world_size: int) -> Costs:
        m, n, k = dims["M"], dims["N"] // world_size, dims["K"]
        work = BaselineWork((m, n, k), "all_gather", 2 * m * k // world_size)
        nvlink = (world_size - 1) / world_size * 2 * m * k
        return Costs(2 * m * n * k, nvlink, 2 * (m * k / world_size + k * n + m * n), work)
