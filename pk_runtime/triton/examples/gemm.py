"""What the five patterns share: the order of the tiles, one tile of A @ B, and sending a tile.

The problem is GEMM + all-scatter: rank r holds A[M, K], the same on all ranks, and its columns
B_r[K, N/W] of B; every rank wants all of C[M, N] = A @ B. Row-major, contiguous, bf16 or fp16, sums
in fp32 with one rounding. Any M, K and N/W; fast where they are multiples of the tile.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

# house: gpu-node, Triton is optional, and nothing outside this package imports it
import triton

# house: gpu-node, as above
import triton.language as tl

from pk_runtime import triton as pk

TILES = ((128, 256, 64), (128, 128, 64))
"""For eight warps. The first multiplies faster, the second divides smaller problems better."""


class Shape(NamedTuple):
    """What the kernels are launched with: the problem's M, columns = N/W and K, and the tile."""

    rows: int
    columns: int
    inner: int
    tile_m: int
    tile_n: int
    tile_k: int

    @property
    def tiles(self) -> int:
        """How many tiles of C this rank computes."""
        return -(-self.rows // self.tile_m) * -(-self.columns // self.tile_n)

    @property
    def tile(self) -> dict[str, int]:
        """The tile as the kernels' compile-time arguments."""
        return {"BM": self.tile_m, "BN": self.tile_n, "BK": self.tile_k}


def shape_of(
    peers: pk.Peers,
    inputs: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor],
    *,
    programs: int,
    tiles: Sequence[tuple[int, int, int]] = TILES,
) -> Shape:
    """Checks the operands, and chooses the tile (m, n, k) of `tiles` with which `programs` that
    multiply at once are done first. Raises ValueError, which names the operand."""
    a, b, c = inputs["a"], inputs["b"], outputs["c"]
    (rows, inner), columns = a.shape, b.shape[1]
    if b.shape[0] != inner:
        raise ValueError(f"b is {tuple(b.shape)}, a {tuple(a.shape)}: they must agree in K")
    if c.shape != (rows, columns * peers.world_size):
        raise ValueError(f"c is {tuple(c.shape)}, not {(rows, columns * peers.world_size)}")
    for name, tensor in (("a", a), ("b", b), ("c", c)):
        if not tensor.is_contiguous() or tensor.dtype != a.dtype:
            raise ValueError(f"{name} must be contiguous, of the type of a, {a.dtype}")
    if peers.device.type == "cpu":
        tiles = [(32, 32, 32)]  # several tiles also of what an interpreter can do
    shapes = [Shape(rows, columns, inner, *tile) for tile in tiles]
    return min(shapes, key=lambda shape: -(-shape.tiles // programs) * shape.tile_m * shape.tile_n)


@triton.jit
def corner(tile, rows, columns, BM: tl.constexpr, BN: tl.constexpr):
    """First row and first column of tile number `tile`: columns of eight tiles, one after another,
    so that what runs at once shares rows of A and columns of B in the L2 cache."""
    tiles_m = tl.cdiv(rows, BM)
    tiles_n = tl.cdiv(columns, BN)
    group = tile // (8 * tiles_n)
    height = tl.minimum(tiles_m - group * 8, 8)
    within = tile % (8 * tiles_n)
    return (group * 8 + within % height) * BM, within // height * BN


@triton.jit
def multiply(
    a, b, row, column, rows, columns, inner,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """fp32[BM, BN]: the tile of A @ B at (row, column); zeros beyond the edges."""
    m = tl.arange(0, BM)[:, None]
    n = tl.arange(0, BN)[None, :]
    k = tl.arange(0, BK)
    at_a = a + row.to(tl.int64) * inner + m * inner + k[None, :]
    at_b = b + column + k[:, None] * columns + n
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(tl.cdiv(inner, BK)):
        left = inner - step * BK
        part_a = tl.load(at_a, mask=(row + m < rows) & (k[None, :] < left), other=0.0)
        part_b = tl.load(at_b, mask=(column + n < columns) & (k[:, None] < left), other=0.0)
        total = pk.dot(part_a, part_b, total)
        at_a += BK
        at_b += BK * columns
    return total


@triton.jit
def place(c, row, column, rows, columns, bases, BM: tl.constexpr, BN: tl.constexpr):
    """Where the tile at (row, column) of the own columns lies in C: pointers and mask [BM, BN]."""
    m = tl.arange(0, BM)[:, None]
    n = tl.arange(0, BN)[None, :]
    width = columns * pk.world_size(bases).to(tl.int32)
    first = c + row.to(tl.int64) * width + pk.rank(bases) * columns + column
    return first + m * width + n, (row + m < rows) & (column + n < columns)


@triton.jit
def send(tile, at, mask, bases, WORLD: tl.constexpr, FIRST: tl.constexpr):
    """Stores a tile at the same place of C on the own rank (if FIRST is 0) and on every peer, each
    rank beginning with its right neighbour, so that no link is every rank's first."""
    own = pk.rank(bases)
    for distance in tl.static_range(FIRST, WORLD):
        pk.store(at, tile, bases, own, (own + distance) % WORLD, mask)
