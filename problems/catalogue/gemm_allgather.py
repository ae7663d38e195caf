"""Problem 14: GEMM + all-gather."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pk_runtime.baseline import BaselineWork
from problems.collectives import all_gather
from problems.contract import Costs, Dims, OutputSpec, Problem, Tensors, bench, by_rank, check


class GemmAllGather(Problem):
    """c = the columns a @ b of all ranks side by side, on every rank (also: GEMM + all-scatter)."""

    number, slug, title, category = 14, "gemm_allgather", "GEMM + all-gather", "Tensor"
    statement = """Every rank holds the same a[M, K] and its own b[K, N/W] in bf16. Every rank
returns c[M, N] in bf16: columns r*N/W to (r+1)*N/W of c are a @ b of rank r."""
    tolerance = "T1"
    sharded = ("N",)
    replicated = frozenset({"a"})
    input_names, output_names = ("a", "b"), ("c",)
    peer_dims = by_rank(c=1)
    shapes = (
        check("tiny", M=64, N=64, K=64),
        check("odd", M=33, N=160, K=72),
        check("default", M=1024, N=1024, K=512),
        bench(M=8192, N=8192, K=8192),
        bench(M=4096, N=4096, K=4096),
        bench(M=1024, N=28672, K=8192),
        bench(M=8192, N=28672, K=8192),
    )

    def input_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        columns = dims["N"] // world_size
        return {"a": self.spec(dims["M"], dims["K"]), "b": self.spec(dims["K"], columns)}

    def output_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        return {"c": self.spec(dims["M"], dims["N"])}

    def input_std(self, name: str, dims: Dims, world_size: int) -> float:
        return float(dims["K"] ** -0.5) if name == "b" else 1.0

    def reference(self, group: dist.ProcessGroup, a: Tensor, b: Tensor) -> Tensors:
        mine = torch.matmul(a, b)
        parts = mine.new_empty(group.size(), *mine.shape)
        all_gather(parts, mine, group)
        return {"c": parts.transpose(0, 1).reshape(a.shape[0], -1)}

    def golden(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        c = inputs[0]["a"].double() @ torch.cat([rank["b"] for rank in inputs], dim=1).double()
        return [{"c": c} for _ in inputs]

    def costs(self, dims: Dims, world_size: int) -> Costs:
        m, n, k = dims["M"], dims["N"] // world_size, dims["K"]
        work = BaselineWork((m, n, k), "all_gather", 2 * m * n, copies=(2 * m * dims["N"],))
        nvlink = (world_size - 1) * 2 * m * n
        return Costs(2 * m * n * k, nvlink, 2 * (m * k + k * n + m * dims["N"]), work)
