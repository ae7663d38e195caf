"""Pattern 2, unfused producer and consumer: a GEMM kernel and a sending kernel run side by side on
two streams, each on its share of the SMs, with one flag per tile between them.

Both grids must be resident at once: the producer has one program for each SM that the consumer
leaves free. On a CPU the two run one after the other, the producer first: every flag is up when
the consumer asks, so that only the order of the accesses is exercised and not the overlap.
"""

import functools
from collections.abc import Mapping

import torch

# house: gpu-node, Triton is optional, and nothing outside this package imports it
import triton

# house: gpu-node, as above
import triton.language as tl

from pk_runtime import triton as pk
from pk_runtime.triton.examples.gemm import Shape, corner, multiply, place, send, shape_of

SENDERS = 16
"""Programs that send, each on an SM of its own: enough to fill the links by plain stores."""


@triton.jit
def produce(
    a, b, c, flags, bases, rows, columns, inner, tiles,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Each program computes every so many-th tile into the own C and publishes its flag."""
    own = pk.rank(bases)
    number = pk.epoch(bases)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row, column = corner(tile, rows, columns, BM, BN)
        total = multiply(a, b, row, column, rows, columns, inner, BM, BN, BK)
        at, mask = place(c, row, column, rows, columns, bases, BM, BN)
        tl.store(at, total.to(c.dtype.element_ty), mask=mask)
        pk.publish(flags, tile, number, bases, own, own)


@triton.jit
def consume(
    c, flags, bases, rows, columns, tiles,
    WORLD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """Each program sends every so many-th tile to all peers, in the order they are produced."""
    number = pk.epoch(bases)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
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
    producers = max(1, peers.processors - SENDERS)
    shape = shape_of(peers, inputs, outputs, programs=producers)
    flags = peers.workspace(f"produced of {shape.tiles}", (shape.tiles,), torch.int32)
    peers.barrier()  # nobody uses the old C any more
    if peers.device.type == "cpu":
        _produce(peers, shape, producers, inputs, outputs["c"], flags)
        _consume(peers, shape, outputs["c"], flags)
    else:
        main = torch.cuda.current_stream(peers.device)
        side = _side_stream(peers.device)
        side.wait_stream(main)
        _produce(peers, shape, producers, inputs, outputs["c"], flags)
        with torch.cuda.stream(side):
            _consume(peers, shape, outputs["c"], flags)
        main.wait_stream(side)
    peers.barrier()  # every tile has arrived


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _produce(
    peers: pk.Peers,
    shape: Shape,
    producers: int,
    inputs: Mapping[str, torch.Tensor],
    c: torch.Tensor,
    flags: torch.Tensor,
) -> None:
    sizes = (shape.rows, shape.columns, shape.inner, shape.tiles)
    produce[(min(shape.tiles, producers),)](
        inputs["a"], inputs["b"], c, flags, peers.bases, *sizes, **shape.tile,
        num_warps=8, num_stages=3,
    )  # fmt: skip


def _consume(peers: pk.Peers, shape: Shape, c: torch.Tensor, flags: torch.Tensor) -> None:
    consume[(min(shape.tiles, SENDERS),)](
        c, flags, peers.bases, shape.rows, shape.columns, shape.tiles,
        WORLD=peers.world_size, BM=shape.tile_m, BN=shape.tile_n, PIECES=2, num_warps=8,
    )  # fmt: skip
