"""Where the wrong elements of a tensor lie, in words a kernel's author can act on."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

RegionKind = Literal["all_wrong", "peer_slice", "boundary", "row_band", "tile", "scattered"]

# A region counts as wrong if this share of it is: unrelated data agrees here and there.
DENSE = 0.9
TILES = ((256, 256), (128, 256), (128, 128), (64, 128), (64, 64), (32, 32), (16, 16), (8, 8))
EDGES = (8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Region:
    """Where a tensor is wrong; `owners` are the ranks whose part of it is."""

    kind: RegionKind
    text: str
    owners: tuple[int, ...] = ()


def locate(bad: Tensor, world_size: int, peer_dim: int | None) -> Region:
    """Classify a mask of wrong elements, at least one of which is set.

    `peer_dim` is the dimension made of one part per rank, if there is one.
    """
    owners, parts = _peer_parts(bad, world_size, peer_dim)
    if float(bad.float().mean()) >= DENSE:
        return Region("all_wrong", "the whole tensor", owners if len(owners) < world_size else ())
    if parts is not None and owners and all(parts[rank] >= DENSE for rank in owners):
        return Region("peer_slice", _slices(bad, world_size, peer_dim, owners), owners)
    grid = bad.reshape(-1, bad.shape[-1]) if bad.ndim > 1 else bad.reshape(1, -1)
    region = _boundary(grid) or _rows(grid, world_size) or _tiles(grid)
    if region is None:
        region = Region("scattered", f"scattered, {_box_text(grid)}")
    text = region.text
    if parts is not None and len(owners) < world_size:
        text += f", only in the part of {_ranks(owners)}"
    else:
        owners = region.owners
    return Region(region.kind, text, owners)


def _peer_parts(
    bad: Tensor, world_size: int, peer_dim: int | None
) -> tuple[tuple[int, ...], list[float] | None]:
    """The ranks whose part has wrong elements, and the wrong share of each rank's part."""
    if peer_dim is None or bad.ndim == 0 or bad.shape[peer_dim] % world_size:
        return (), None
    share = bad.movedim(peer_dim, 0).reshape(world_size, -1).float().mean(1).tolist()
    return tuple(rank for rank, part in enumerate(share) if part > 0), share


def _slices(bad: Tensor, world_size: int, peer_dim: int | None, owners: tuple[int, ...]) -> str:
    assert peer_dim is not None
    size = bad.shape[peer_dim] // world_size
    first, last = owners[0] * size, owners[0] * size + size - 1
    if len(owners) == 1:
        which = f"index {first}" if first == last else f"indices {first} to {last}"
        return f"{which} of dimension {peer_dim}: exactly the part of {_ranks(owners)}"
    return f"exactly the parts of {_ranks(owners)} along dimension {peer_dim}"


def _boundary(grid: Tensor) -> Region | None:
    """All wrong elements in the rows or columns left over after whole tiles."""
    rows, columns = grid.shape
    for edge in EDGES:
        row, column = rows - rows % edge or rows, columns - columns % edge or columns
        last_rows = f"{_span('row', row, rows - 1)} of {rows}"
        last_columns = f"{_span('column', column, columns - 1)} of {columns}"
        for inner, text in (
            (grid[:row], last_rows),
            (grid[:, :column], last_columns),
            (grid[:row, :column], f"{last_rows} and {last_columns}"),
        ):
            if inner.numel() < grid.numel() and not bool(inner.any()):
                return Region("boundary", f"only {text}: what whole tiles of {edge} leave over")
    return None


def _rows(grid: Tensor, world_size: int) -> Region | None:
    """Whole rows wrong, all others right."""
    share = grid.float().mean(1)
    wrong = share > 0
    if not bool((share[wrong] >= DENSE).all()):
        return None
    rows, indices = grid.shape[0], torch.nonzero(wrong).flatten().tolist()
    if rows == 1:
        return None
    first, last = indices[0], indices[-1]
    if len(indices) < last - first + 1:
        return Region("row_band", f"{len(indices)} whole rows of {rows}, the first is row {first}")
    text = f"whole rows {first} to {last} of {rows}"
    part = rows // world_size
    if rows % world_size == 0 and first % part == 0 and len(indices) == part:
        rank = first // part
        return Region("row_band", f"{text}, which is part {rank} of {world_size}", (rank,))
    return Region("row_band", text)


def _tiles(grid: Tensor) -> Region | None:
    """Rectangles wrong, all else right: one box, or whole tiles of a grid."""
    top, bottom, left, right = _box(grid)
    if float(grid[top : bottom + 1, left : right + 1].float().mean()) >= DENSE:
        height, width = bottom - top + 1, right - left + 1
        block = "one element" if height * width == 1 else f"one block of {height} x {width}"
        return Region("tile", f"{block}, {_box_text(grid)}")
    for height, width in TILES:
        if grid.shape[0] < 2 * height and grid.shape[1] < 2 * width:
            continue
        share = _tile_shares(grid, height, width)
        wrong = share > 0
        if bool((share[wrong] >= DENSE).all()):
            row, column = torch.nonzero(wrong)[0].tolist()
            count = f"{int(wrong.sum())} of {wrong.numel()} tiles of {height} x {width}"
            at = f"rows from {row * height}, columns from {column * width}"
            return Region("tile", f"{count}, the first at {at}")
    return None


def _tile_shares(grid: Tensor, height: int, width: int) -> Tensor:
    """Share of wrong elements in each tile; tiles at the edges may be smaller."""
    counts = torch.nn.functional.avg_pool2d(
        grid[None, None].float(),
        (height, width),
        ceil_mode=True,
        count_include_pad=False,
    )
    return counts[0, 0]


def _box(grid: Tensor) -> tuple[int, int, int, int]:
    rows = torch.nonzero(grid.any(1)).flatten()
    columns = torch.nonzero(grid.any(0)).flatten()
    return int(rows[0]), int(rows[-1]), int(columns[0]), int(columns[-1])


def _box_text(grid: Tensor) -> str:
    top, bottom, left, right = _box(grid)
    box = f"{_span('row', top, bottom)}, {_span('column', left, right)}"
    return f"{box} of {grid.shape[0]} x {grid.shape[1]}"


def _span(what: str, first: int, last: int) -> str:
    return f"{what} {first}" if first == last else f"{what}s {first} to {last}"


def _ranks(ranks: tuple[int, ...]) -> str:
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {', '.join(map(str, ranks))}"
