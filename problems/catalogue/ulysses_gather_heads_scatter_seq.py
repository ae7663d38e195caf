"""Problem 37: all-to-all of a 4-D tensor, sequence to heads (Ulysses)."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pk_runtime.baseline import BaselineWork
from problems.contract import Costs, Dims, OutputSpec, Problem, Tensors, bench, by_rank, check


class GatherHeadsScatterSequence(Problem):
    """From the whole sequence and a part of the heads to a part of the sequence and all heads."""

    number, slug, category = 37, "ulysses_gather_heads_scatter_seq", "Context"
    title = "Gather the heads, scatter the sequence"
    statement = """Every rank holds x[B, T, h, d] in bf16: all T positions of B sequences, its own h
heads. Every rank returns y[B, T/W, W*h, d] in bf16: its own positions and all heads, rank by rank.
y[:, :, s*h:(s+1)*h] is x_s[:, rank*T/W:(rank+1)*T/W], bit for bit."""
    tolerance, peak = "T0", "fp32"
    sharded = ("T",)
    input_names, output_names = ("x",), ("y",)
    peer_dims = by_rank(y=2)
    shapes = (
        check("tiny", B=2, T=16, h=2, d=16),
        check("odd", B=2, T=52, h=3, d=24),
        check("default", B=16, T=16, h=8, d=64),
        bench(B=1, T=4096, h=32, d=128),
        bench(B=1, T=32768, h=8, d=128),
        bench(B=4, T=2048, h=8, d=128),
        bench(B=1, T=131072, h=16, d=128),
    )

    def input_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        return {"x": self.spec(dims["B"], dims["T"], dims["h"], dims["d"])}

    def output_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        heads = world_size * dims["h"]
        return {"y": self.spec(dims["B"], dims["T"] // world_size, heads, dims["d"])}

    def reference(self, group: dist.ProcessGroup, x: Tensor) -> Tensors:
        batches, rows, *heads = x.shape
        parts = x.reshape(batches, group.size(), rows // group.size(), *heads)
        sent = parts.transpose(0, 1).contiguous()  # [W, B, T/W, h, d]; a copy unless B is 1
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        return {"y": received.permute(1, 2, 0, 3, 4).flatten(2, 3)}

    def golden(self, inputs: Sequence[Tensors]) -> list[Tensors]:
        whole = torch.cat([rank["x"] for rank in inputs], dim=2)
        return [{"y": rows.contiguous()} for rows in whole.chunk(len(inputs), dim=1)]

    def costs(self, dims: Dims, world_size: int) -> Costs:
        size = 2 * dims["B"] * dims["T"] * dims["h"] * dims["d"]
        copies = (size,) if dims["B"] == 1 else (size, size)
        work = BaselineWork(None, "all_to_all", size, copies)
        return Costs(0, (world_size - 1) * size / world_size, 2 * size, work)
