"""Our GEMM main loop alone beside cuBLAS, on one GPU: how good the fused kernels' GEMM can be."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.sweep import build_all
from benchmarks.gpu.sweep_process import GEMM_ALONE, Job, Measured, measure
from benchmarks.gpu_gemm.__main__ import gemm

SECTION = "GEMM alone, one GPU"
# (m, n, k) of one rank of four: GEMM + reduce-scatter at 8192, all-gather + GEMM at 8192, at 4096.
SHAPES = ((8192, 8192, 2048), (8192, 2048, 8192), (4096, 4096, 1024))
KNOBS = tuple(
    {"stages": stages, "super_m": super_m} for stages in (3, 4) for super_m in (1, 8)
)  # fmt: skip
SECONDS = 8.0
PROBLEM = "gemm_allgather"  # with one rank it is the GEMM


def measure_rows(
    cache: Path, jobs: int, shapes: Sequence[tuple[int, int, int]] = SHAPES
) -> list[dict[str, Any]]:
    """A row for every shape, in the form of the other rows."""
    libraries, unbuilt = build_all(gemm({}), KNOBS, cache, jobs)
    rows = []
    for m, n, k in shapes:
        entries = ((GEMM_ALONE, Path()), *libraries)
        job = Job(PROBLEM, {"M": m, "N": n, "K": k}, 1, entries, SECONDS, timeout_s=2.0)
        measured, failed, _ = measure(job)
        failures = [*failed, *((f.knobs, f.why) for f in unbuilt)]
        rows.append(row_of((m, n, k), measured, failures))
    return rows


def row_of(
    shape: tuple[int, int, int], measured: Sequence[Measured], failed: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """What the other rows look like; the peer is cuBLAS."""
    m, n, k = shape
    return {
        "key": f"gemm/{m}x{n}x{k}",
        "section": SECTION,
        "op": "GEMM",
        "size": f"{m} x {n} x {k}",
        "problem": "gemm",
        "dims": {"M": m, "N": n, "K": k},
        "goal_us": None,
        "seconds": SECONDS,
        "sets": 1,
        "nvlink_bytes": 0.0,
        "flops": 2.0 * m * n * k,
        "contenders": [_contender(row) for row in measured],
        "failed": [list(pair) for pair in failed],
    }


def _contender(row: Measured) -> dict[str, Any]:
    mine = row.knobs != GEMM_ALONE
    return {
        "name": f"gemm {row.knobs}" if mine else "cuBLAS",
        "mode": "graph",
        "us": round(statistics.median(row.times_us), 3),
        "us_min": round(min(row.times_us), 3),
        "us_max": round(max(row.times_us), 3),
        "rounds": len(row.times_us),
        "calls": None,
        "right": row.result == "ok",
        "error": None if row.result == "ok" else 1e9,
        "sms": row.blocks or None,
        "note": row.result if row.result != "ok" else "",
        "kernel": "gemm" if mine else None,
        "knobs": _knobs(row.knobs) if mine else None,
        "staged": False,
    }


def _knobs(label: str) -> dict[str, int]:
    pairs = (part.split("=") for part in label.split() if "=" in part)
    return {name: int(value) for name, value in pairs}
