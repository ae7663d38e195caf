"""Problem 6: gather."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pk_runtime.baseline import BaselineWork
from problems.contract import Costs, Dims, OutputSpec, Problem, Tensors, bench, check


class Gather(Problem):
    """y[r] = x of rank r on rank 0; copies of the own x elsewhere."""

    number, slug, title, category = 6, "gather", "Gather", "Collective"
    statement = """Every rank holds x[M, N] in bf16. Every rank returns y[W, M, N] in bf16. Rank 0,
the root, returns the x of every rank in rank order: y[r] = x_r. Every other rank returns copies of
its own x: y[r] = x_rank for every r. All bit for bit."""
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
        return {"y": self.spec(world_size, dims["M"], dims["N"])}

    def contributors(self, world_size: int) -> Sequence[int]:
        return range(1, world_size)

    def reference(self, group: dist.ProcessGroup, x: Tensor) -> Tensors:
        y = x.repeat(group.size(), 1, 1)
        parts = list(y.unbind()) if group.rank() == 0 else None
        dist.gather(x, parts, group=group, group_dst=0)
        return {"y": y}

    def golden(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        count = len(inputs)
        copies = [{"y": rank["x"].repeat(count, 1, 1)} for rank in inputs[1:]]
        return [{"y": torch.stack([rank["x"] for rank in inputs])}, *copies]

    def costs(self, dims: Dims, world_size: int) -> Costs:
        part = 2 * dims["M"] * dims["N"]
        # Nearest measured: the all-to-all that brings each rank as many bytes as the root gets.
        work = BaselineWork(None, "all_to_all", world_size * part)
        return Costs(0, (world_size - 1) * part, (1 + world_size) * part, work)
