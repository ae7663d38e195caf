"""The dispatch table that a run's results stand for: by size, the fastest, NCCL included."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pk_runtime.gpu.dispatch_table import Row, write_dispatch

MARGIN = 1.02  # a kernel must be so many times faster than NCCL: less is within the noise
REACH = 4  # how far beyond the sizes measured a kernel is trusted

# The problem's slug: the operation's name, and the bytes that its table counts, of one rank.
OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "gemm_reducescatter": "gemm_reduce_scatter",
    "gemm_allreduce": "gemm_all_reduce",
    "sp_ag_gemm_m_sharded": "all_gather_gemm",
}


def counted_bytes(problem: str, dims: dict[str, int], world: int) -> int:
    """Bytes of one rank's input, of its `a` where that is gathered, of the product if reduced."""
    size = 2 * dims["M"] * (dims["K"] if problem == "sp_ag_gemm_m_sharded" else dims["N"])
    if problem in ("reducescatter", "alltoall"):
        return size * world
    return size // world if problem == "sp_ag_gemm_m_sharded" else size


def rows_of(
    points: Sequence[tuple[int, str | None, dict[str, int]]], *, fused: bool = False
) -> list[Row]:
    """Rows from (bytes, kernel or None for NCCL, knobs): what won at a size holds around it.

    Between two sizes that kernels won, the border is in the middle (geometrically); beside one that
    NCCL won, a kernel holds up to its own size only. Beyond `REACH` times the largest size NCCL is
    used; for fused operators, whose tiles suit large matrices, also below the smallest by `REACH`.
    """
    ordered = sorted(points, key=lambda p: p[0])
    rows: list[Row] = []
    for number, (size, kernel, knobs) in enumerate(ordered):
        following = ordered[number + 1] if number + 1 < len(ordered) else None
        if following is None:
            limit = None if kernel is None else size * REACH
        elif kernel is None:
            limit = following[0] - 1
        elif following[1] is None:
            limit = size
        else:
            limit = math.isqrt(size * following[0])
        row = Row(limit, kernel, knobs)
        if rows and (rows[-1].kernel, rows[-1].knobs) == (kernel, knobs):
            rows.pop()
        rows.append(row)
    if rows and rows[-1].max_bytes is not None:
        rows.append(Row(None, None, {}))
    if fused and ordered and ordered[0][1] is not None:
        rows.insert(0, Row(ordered[0][0] // REACH - 1, None, {}))
    return rows


def table_of(record: dict[str, Any]) -> dict[str, list[Row]]:
    """Rows by operation. Times of kernels are those with copies into symmetric memory."""
    world = record["machine"]["world_size"]
    points: dict[str, dict[int, tuple[float, str | None, dict[str, int]]]] = {}
    for row in record["rows"]:
        operation = OPERATIONS.get(row["problem"])
        nccl = next((c for c in row["contenders"] if c["name"] == "nccl graph"), None)
        if operation is None or nccl is None:
            continue
        size = counted_bytes(row["problem"], row["dims"], world)
        staged = [c for c in row["contenders"] if c["staged"] and c["right"]]
        best = min(staged, key=lambda c: float(c["us"]), default=None)
        gain = nccl["us"] / best["us"] if best else 0.0
        choice: tuple[float, str | None, dict[str, int]] = (gain, None, {})
        if best and gain >= MARGIN:
            choice = (gain, best["kernel"], best["knobs"])
        at = points.setdefault(operation, {})
        # Several shapes of one size: the one where the kernel gains least decides.
        if size not in at or gain < at[size][0]:
            at[size] = choice
    return {
        operation: rows_of(
            [(size, kernel, knobs) for size, (_, kernel, knobs) in at.items()],
            fused="gemm" in operation,
        )
        for operation, at in points.items()
    }


def write(path: Path, record: dict[str, Any]) -> None:
    """Writes the table of a run; TableError if it is not one."""
    machine = record["machine"]
    measured = (
        f"{record['date'][:10]}, {machine['world_size']}x {machine['gpus'][0]}, driver "
        f"{machine['driver']}, torch {machine['torch']}, NCCL {machine['nccl']}; CUDA graphs, "
        "copies into symmetric memory counted"
    )
    write_dispatch(path, table_of(record), measured)
