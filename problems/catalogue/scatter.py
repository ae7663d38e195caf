"""Problem 5: scatter."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pk_runtime.baseline import BaselineWork
from problems.contract import Costs, Dims, OutputSpec, Problem, Tensors, bench, check


class Scatter(Problem):
    """y = part `rank` of x of rank 0."""

    number, slug, title, category = 5, "scatter", "Scatter", "Collective"
    statement = """Every rank holds x[W, M, N] in bf16; only that of rank 0, the root, matters.
Every rank returns y[M, N] in bf16, its part of the x of rank 0, bit for bit: y = x_0[rank]."""
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
        return {"x": self.spec(world_size, dims["M"], dims["N"])}

    def output_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        return {"y": self.spec(dims["M"], dims["N"])}

    def contributors(self, world_size: int) -> Sequence[int]:
        return (0,)

    def reference(self, group: dist.ProcessGroup, x: Tensor) -> Tensors:
        y = torch.empty_like(x[0])
        parts = list(x.unbind()) if group.rank() == 0 else None
        dist.scatter(y, parts, group=group, group_src=0)
        return {"y": y}

    def golden(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        return [{"y": part} for part in inputs[0]["x"].unbind()]

    def costs(self, dims: Dims, world_size: int) -> Costs:
        part = 2 * dims["M"] * dims["N"]
        # Nearest measured: the all-to-all that sends as many bytes from each rank as the root does.
        work = BaselineWork(None, "all_to_all", world_size * part)
        return Costs(0, (world_size - 1) * part, (1 + world_size) * part, work)
