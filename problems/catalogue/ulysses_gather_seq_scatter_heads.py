"""Problem 36: all-to-all of a 4-D tensor, heads to sequence (Ulysses)."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pk_runtime.baseline import BaselineWork
from problems.contract import Costs, Dims, OutputSpec, Problem, Tensors, bench, by_rank, check


class GatherSequenceScatterHeads(Problem):
    """From a part of the sequence and all heads to the whole sequence and a part of the heads."""

    number, slug, category = 36, "ulysses_gather_seq_scatter_heads", "Context"
    title = "Gather the sequence, scatter the heads"
    statement = """Every rank holds x[B, T, h, d] in bf16: its T positions of B sequences, all h
heads. Every rank returns y[B, W*T, h/W, d] in bf16: all positions, rank by rank, and its own heads.
y[:, s*T:(s+1)*T] is x_s[:, :, rank*h/W:(rank+1)*h/W], bit for bit."""
    tolerance, peak = "T0", "fp32"
    sharded = ("h",)
    input_names, output_names = ("x",), ("y",)
    peer_dims = by_rank(y=1)
    shapes = (
        check("tiny", B=2, T=8, h=8, d=16),
        check("odd", B=2, T=13, h=12, d=24),
        check("default", B=16, T=16, h=8, d=64),
        bench(B=1, T=1024, h=128, d=128),
        bench(B=1, T=8192, h=32, d=128),
        bench(B=4, T=512, h=32, d=128),
        bench(B=1, T=32768, h=64, d=128),
    )

    def input_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        return {"x": self.spec(dims["B"], dims["T"], dims["h"], dims["d"])}

    def output_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        heads = dims["h"] // world_size
        return {"y": self.spec(dims["B"], world_size * dims["T"], heads, dims["d"])}

    def reference(self, group: dist.ProcessGroup, x: Tensor) -> Tensors:
        world_size = group.size()
        sent = torch.stack(x.chunk(world_size, dim=2))  # [W, B, T, h/W, d]
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        return {"y": received.transpose(0, 1).flatten(1, 2)}

    def golden(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        whole = torch.cat([rank["x"] for rank in inputs], dim=1)
        return [{"y": heads.contiguous()} for heads in whole.chunk(len(inputs), dim=2)]

    def costs(self, dims: Dims, world_size: int) -> Costs:
        size = 2 * dims["B"] * dims["T"] * dims["h"] * dims["d"]
        copies = (size,) if dims["B"] == 1 else (size, size)
        work = BaselineWork(None, "all_to_all", size, copies)
        return Costs(0, (world_size - 1) * size / world_size, 2 * size, work)
