"""Pattern 5, specialised by warp: inside each program one group of warps loads by TMA while the
others multiply, and the compiler splits the loop between them (`warp_specialize=True`).

It is the loading that gets warps of its own. Triton on Hopper divides one loop by the kinds of its
operations and not by what the author says, so there is no way to give the peers' stores a group of
warps: the multiplying warps send, as in pattern 3, while the loaders fetch the next tile ahead.
Needs rows of A and B that are multiples of 16 bytes; other shapes take pattern 3.
"""

from collections.abc import Mapping

import torch

# house: gpu-node, Triton is optional, and nothing outside this package imports it
import triton

# house: gpu-node, as above
import triton.language as tl

# house: gpu-node, as above
from triton.tools.tensor_descriptor import TensorDescriptor

from pk_runtime import triton as pk
from pk_runtime.triton.examples import fused_sequential
from pk_runtime.triton.examples.gemm import corner, place, send, shape_of

# Two groups of warps share a tile. One of 128 rows they would split by rows, which Triton 3.9 fails
# to do; Triton 3.6 waits for half of what a descriptor's box brings, for ever. Of this one they get
# all that is loaded.
TILE, STAGES = (64, 128, 64), 4


@triton.jit
def gemm_all_scatter(
    a, b, c, bases, rows, columns, inner, tiles,
    WORLD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Descriptors a[BM, BK] and b[BK, BN]; every so many-th tile, into every rank's C."""
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), warp_specialize=True):
        row, column = corner(tile, rows, columns, BM, BN)
        total = tl.zeros((BM, BN), tl.float32)
        for step in range(tl.cdiv(inner, BK)):
            total = pk.dot(a.load([row, step * BK]), b.load([step * BK, column]), total)
        at, mask = place(c, row, column, rows, columns, bases, BM, BN)
        send(total.to(c.dtype.element_ty), at, mask, bases, WORLD, 0)


def launch(
    peers: pk.Peers, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]
) -> None:
    """C[M, N] = A[M, K] @ B[K, N] on all ranks: inputs a, b (own columns), output c in the heap."""
    shape = shape_of(peers, inputs, outputs, programs=peers.processors, tiles=[TILE])
    a, b = inputs["a"], inputs["b"]
    if any(t.stride(0) * t.element_size() % 16 or t.data_ptr() % 16 for t in (a, b)):
        fused_sequential.launch(peers, inputs, outputs)
        return
    at_a = TensorDescriptor.from_tensor(a, [shape.tile_m, shape.tile_k])
    at_b = TensorDescriptor.from_tensor(b, [shape.tile_k, shape.tile_n])
    peers.barrier()  # nobody uses the old C any more
    gemm_all_scatter[(min(shape.tiles, peers.processors),)](
        at_a, at_b, outputs["c"], peers.bases,
        shape.rows, shape.columns, shape.inner, shape.tiles,
        WORLD=peers.world_size, **shape.tile, num_warps=4, num_stages=STAGES,
    )  # fmt: skip
    peers.barrier()  # every tile has arrived
