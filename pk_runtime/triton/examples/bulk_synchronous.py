"""Pattern 1, unfused and bulk-synchronous: a GEMM kernel, a barrier, a collective, a barrier.

The simplest, and it pays every tax: three launches, all ranks wait for the slowest, and C goes
through memory between the GEMM and the collective.
"""

from collections.abc import Mapping

import torch

# house: gpu-node, Triton is optional, and nothing outside this package imports it
import triton

# house: gpu-node, as above
import triton.language as tl

from pk_runtime import triton as pk
from pk_runtime.triton.examples.gemm import corner, multiply, place, shape_of


@triton.jit
def gemm(
    a, b, c, bases, rows, columns, inner,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One program per tile: into the own columns of the own C."""
    row, column = corner(tl.program_id(0), rows, columns, BM, BN)
    tile = multiply(a, b, row, column, rows, columns, inner, BM, BN, BK)
    at, mask = place(c, row, column, rows, columns, bases, BM, BN)
    tl.store(at, tile.to(c.dtype.element_ty), mask=mask)


@triton.jit
def all_gather(c, bases, rows, columns, WORLD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Program (t, p) pulls tile t of the p-th peer's columns from that peer's C."""
    row, column = corner(tl.program_id(0), rows, columns, BM, BN)
    own = pk.rank(bases)
    peer = (own + 1 + tl.program_id(1)) % WORLD
    at, mask = place(c, row, column, rows, columns, bases, BM, BN)
    at += (peer - own) * columns
    pk.get(at, at, bases, own, peer, mask)


def launch(
    peers: pk.Peers, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]
) -> None:
    """C[M, N] = A[M, K] @ B[K, N] on all ranks: inputs a, b (own columns), output c in the heap."""
    shape = shape_of(peers, inputs, outputs, programs=peers.processors)
    a, b, c = inputs["a"], inputs["b"], outputs["c"]
    sizes = (shape.rows, shape.columns)
    gemm[(shape.tiles,)](
        a, b, c, peers.bases, *sizes, shape.inner, **shape.tile, num_warps=8, num_stages=3
    )
    peers.barrier()  # every rank's columns are complete
    if peers.world_size > 1:
        rows, columns = min(shape.tile_m, 32), shape.tile_n
        pieces = triton.cdiv(shape.rows, rows) * triton.cdiv(shape.columns, columns)
        all_gather[(pieces, peers.world_size - 1)](
            c, peers.bases, *sizes, WORLD=peers.world_size, BM=rows, BN=columns, num_warps=8
        )
    peers.barrier()  # nobody reads this rank's columns any more
