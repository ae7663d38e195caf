"""Pattern 3, fused and sequential: each program computes a tile and sends it from registers.

No trip through memory and no flag. A program computes nothing while it sends, so two of them share
an SM: the tile is small enough for that. The last wave of tiles is sent with nothing beside it.
"""

from collections.abc import Mapping

import torch

# house: gpu-node, Triton is optional, and nothing outside this package imports it
import triton

# house: gpu-node, as above
import triton.language as tl

from pk_runtime import triton as pk
from pk_runtime.triton.examples.gemm import corner, multiply, place, send, shape_of

TILES = ((128, 128, 64),)


@triton.jit
def gemm_all_scatter(
    a, b, c, bases, rows, columns, inner,
    WORLD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One program per tile: into the own columns of every rank's C."""
    row, column = corner(tl.program_id(0), rows, columns, BM, BN)
    total = multiply(a, b, row, column, rows, columns, inner, BM, BN, BK)
    at, mask = place(c, row, column, rows, columns, bases, BM, BN)
    send(total.to(c.dtype.element_ty), at, mask, bases, WORLD, 0)


def launch(
    peers: pk.Peers, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]
) -> None:
    """C[M, N] = A[M, K] @ B[K, N] on all ranks: inputs a, b (own columns), output c in the heap."""
    shape = shape_of(peers, inputs, outputs, programs=2 * peers.processors, tiles=TILES)
    peers.barrier()  # nobody uses the old C any more
    gemm_all_scatter[(shape.tiles,)](
        inputs["a"], inputs["b"], outputs["c"], peers.bases,
        shape.rows, shape.columns, shape.inner,
        WORLD=peers.world_size, **shape.tile, num_warps=4, num_stages=3,
    )  # fmt: skip
    peers.barrier()  # every tile has arrived
