"""Pattern 4, fused and specialised by workgroup: one persistent kernel in which the first programs
compute and the others send, with one flag per tile between them.

One launch and overlap as in pattern 2, without a second stream. Every program is resident: the grid
is one program per SM. On a CPU programs run one by one in their order, so whoever waits must come
after whom it waits for: the senders are the last.
"""

from collections.abc import Mapping

import torch

# house: gpu-node, Triton is optional, and nothing outside this package imports it
import triton

# house: gpu-node, as above
import triton.language as tl

from pk_runtime import triton as pk
from pk_runtime.triton.examples.gemm import corner, multiply, place, send, shape_of

SENDERS = 16
"""Programs that send, of one per SM; at most half of all."""


@triton.jit
def gemm_all_scatter(
    a, b, c, flags, bases, rows, columns, inner, tiles, computers,
    WORLD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """Programs below `computers` compute tiles into the own C, the others send them to peers."""
    program = tl.program_id(0)
    number = pk.epoch(bases)
    if program < computers:
        own = pk.rank(bases)
        for tile in range(program, tiles, computers):
            row, column = corner(tile, rows, columns, BM, BN)
            total = multiply(a, b, row, column, rows, columns, inner, BM, BN, BK)
            at, mask = place(c, row, column, rows, columns, bases, BM, BN)
            tl.store(at, total.to(c.dtype.element_ty), mask=mask)
            pk.publish(flags, tile, number, bases, own, own)
    else:
        for tile in range(program - computers, tiles, tl.num_programs(0) - computers):
            pk.wait(flags, tile, number, bases)
            row, column = corner(tile, rows, columns, BM, BN)
            for piece in range(PIECES):
                start = row + piece * (BM // PIECES)
                at, mask = place(c, start, column, rows, columns, bases, BM // PIECES, BN)
                send(tl.load(at, mask=mask), at, mask, bases, WORLD, 1)


def launch(
    peers: pk.Peers, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]
) -> None:
    """C[M, N] = A[M, K] @ B[K, N] on all ranks: inputs a, b (own columns), output c in the heap."""
    programs = peers.processors
    computers = programs - min(SENDERS, programs // 2)
    shape = shape_of(peers, inputs, outputs, programs=computers)
    flags = peers.workspace(f"computed of {shape.tiles}", (shape.tiles,), torch.int32)
    peers.barrier()  # nobody uses the old C any more
    gemm_all_scatter[(programs,)](
        inputs["a"], inputs["b"], outputs["c"], flags, peers.bases,
        shape.rows, shape.columns, shape.inner, shape.tiles, computers,
        WORLD=peers.world_size, **shape.tile, PIECES=2, num_warps=8, num_stages=3,
    )  # fmt: skip
    peers.barrier()  # every tile has arrived
