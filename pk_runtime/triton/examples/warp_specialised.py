"""Pattern 5, specialised by warp: inside each program one group of warps loads by TMA while the
others multiply, and the compiler splits the loop between them (`warp_specialize=True`).

It is the loading that gets warps of its own: Triton 3.6 on Hopper offers no way to give the peers'
stores a group of warps, because it divides one loop by the kinds of its operations and not by what
the author says. So the multiplying warps send, as in pattern 3, while the loaders fetch ahead.
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


@triton.jit
def gemm_all_scatter(
    a, b, c, bases, rows, columns, inner,
    WORLD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Descriptors a[BM, BK] and b[BK, BN]; one program per tile, into every rank's C."""
    row, column = corner(tl.program_id(0), rows, columns, BM, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for step in tl.range(0, tl.cdiv(inner, BK), warp_specialize=True):
        total = pk.dot(a.load([row, step * BK]), b.load([step * BK, column]), total)
    at, mask = place(c, row, column, rows, columns, bases, BM, BN)
    send(total.to(c.dtype.element_ty), at, mask, bases, WORLD, 0)


def launch(
    peers: pk.Peers, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]
) -> None:
    """C[M, N] = A[M, K] @ B[K, N] on all ranks: inputs a, b (own columns), output c in the heap."""
    shape = shape_of(peers, inputs, outputs, tile=(128, 128, 64))
    a, b = inputs["a"], inputs["b"]
    if any(t.stride(0) * t.element_size() % 16 or t.data_ptr() % 16 for t in (a, b)):
        fused_sequential.launch(peers, inputs, outputs)
        return
    at_a = TensorDescriptor.from_tensor(a, [shape.tile_m, shape.tile_k])
    at_b = TensorDescriptor.from_tensor(b, [shape.tile_k, shape.tile_n])
    peers.barrier()  # nobody uses the old C any more
    gemm_all_scatter[(shape.tiles,)](
        at_a, at_b, outputs["c"], peers.bases, shape.rows, shape.columns, shape.inner,
        WORLD=peers.world_size, **shape.tile, num_warps=4, num_stages=4,
    )  # fmt: skip
    peers.barrier()  # every tile has arrived
