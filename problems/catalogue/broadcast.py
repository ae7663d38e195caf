"""Problem 3: broadcast."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from pk_runtime.baseline import BaselineWork
from problems.contract import Costs, Dims, OutputSpec, Problem, Tensors, bench, check


class Broadcast(Problem):
    """y = x of rank 0, on every rank."""

    number, slug, title, category = 3, "broadcast", "Broadcast", "Collective"
    statement = """Every rank holds x[M, N] in bf16; only that of rank 0, the root, matters. Every
rank returns y[M, N] in bf16, the x of rank 0, bit for bit: y = x_0."""
    tolerance, peak = "T0", "fp32"
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

    def contributors(self, world_size: int) -> Sequence[int]:
        return (0,)

    def reference(self, group: dist.ProcessGroup, x: Tensor) -> Tensors:
        y = x.clone()
        dist.broadcast(y, group=group, group_src=0)
        return {"y": y}

    def golden(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        return [{"y": inputs[0]["x"]} for _ in inputs]

    def costs(self, dims: Dims, world_size: int) -> Costs:
        size = 2 * dims["M"] * dims["N"]
        # Nearest measured: the all-gather that brings as many bytes into each rank.
        work = BaselineWork(None, "all_gather", max(1, size // (world_size - 1)))
        return Costs(0, size, 2 * size, work)
