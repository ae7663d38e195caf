"""The time PyTorch with cuBLAS and NCCL takes, modelled from a hardware sheet's measured tables.

This is what a candidate is compared with on `sim:` targets: a GEMM, a collective and the copies
that bring a tensor into the order the collective wants, one after the other, as
`torch.distributed` code runs them. Its times are simulated ones, and wherever the sheet has both,
those of CUDA graph replay: the baseline's launch costs are not held against it.

Source: the collectives are the measured tables of the sheet, interpolated; the GEMM is a form
fitted to the sheet's measured cuBLAS times, which it meets within 5 %. The sums meet the operators
measured as a whole (GEMM + reduce-scatter 718 us, all-gather + GEMM 688 us, GEMM + all-reduce
981 us, all-to-all of 4-D tensors with its two copies 169 us on 4x H200) within 5 % as well;
tests/pk_runtime/test_baseline.py checks both.
"""

import itertools
import math
from dataclasses import dataclass

from pk_runtime.report import Taxes
from pk_runtime.sheet import Collective, GemmTile, Sheet

_SOURCE = (
    "modelled PyTorch baseline: cuBLAS time fitted to measured GEMMs, NCCL time interpolated from "
    "measured collectives (CUDA graph replay where measured), copies that reorder a tensor at a "
    "measured share of the local copy rate, one after the other"
)
# Rate of a copy that reorders dimensions, relative to a plain local copy. Fitted: on 4x H200 the
# 4-D all-to-all of 8.4, 33.6, 134 and 537 MB takes 16, 58, 230 and 890 us more with its two
# reordering copies than without them.
REORDERING_RATE = 0.6


_UNCALIBRATED = (
    "modelled PyTorch baseline from published figures and estimates, uncalibrated: a GEMM, a "
    "collective and copies, one after the other"
)


@dataclass(frozen=True)
class BaselineWork:
    """What the unfused operator does on every rank.

    `gemm` is (m, n, k) of one rank, bf16. `collective` is one of all_reduce, all_gather,
    reduce_scatter, all_to_all; `collective_bytes` is one rank's buffer for all_reduce and
    all_to_all, one rank's shard for all_gather (its input) and reduce_scatter (its output).
    `copies` are tensors that PyTorch copies to reorder their dimensions, in bytes each.
    """

    gemm: tuple[int, int, int] | None
    collective: str | None
    collective_bytes: int
    copies: tuple[int, ...] = ()


def source(sheet: Sheet) -> str:
    """Where a modelled baseline's time comes from, as a sentence part."""
    return _SOURCE if sheet.calibrated else _UNCALIBRATED


def baseline_us(work: BaselineWork, sheet: Sheet) -> float:
    """Modelled microseconds of the unfused operator; SheetError for an unknown collective.

    ValueError if there is nothing to do, or a size is not positive.
    """
    if work.gemm is None and work.collective is None:
        raise ValueError("baseline work needs a gemm, a collective or both")
    total = 0.0
    if work.gemm is not None:
        total += gemm_us(*work.gemm, sheet)
    if work.collective is not None:
        total += collective_us(work.collective, work.collective_bytes, sheet)
    return total + sum(copy_us(size, sheet) for size in work.copies)


def baseline_taxes(work: BaselineWork, least_hbm_bytes: float, sheet: Sheet) -> Taxes:
    """The three taxes of the unfused operator; `least_hbm_bytes` is what the operator must move.

    Launch: what the model charges for each kernel. Bulk-synchronous wait: of GEMM and collective
    the shorter, since one runs only when the other is done; of a collective alone, what it takes
    with next to no bytes. Locality: the time HBM needs for bytes beyond the least, where every
    kernel reads its inputs from HBM and writes its result there. A tensor handed from one kernel
    to the next that fits into L2 is not counted as read again.

    The taxes are those of "Eliminating Multi-GPU Performance Taxes" (arXiv 2511.02168).
    """
    small = sheet.simulator.graph_launch_us
    launch = small * len(work.copies)
    waits: list[float] = []
    if work.gemm is not None:
        launch += sheet.gemm_model.launch_us
        waits.append(gemm_us(*work.gemm, sheet) - sheet.gemm_model.launch_us)
    if work.collective is not None:
        launch += small
        body = collective_us(work.collective, work.collective_bytes, sheet) - small
        latency = sheet.collective(work.collective).bytes_us[0][1] - small
        waits.append(body if work.gemm is not None else min(latency, body))
    excess = _hbm_bytes(work, sheet) - least_hbm_bytes
    return Taxes(
        launch=launch,
        bulk_synchronous=max(0.0, min(waits)) if work.collective is not None else 0.0,
        locality=max(0.0, excess) / sheet.simulator.hbm_bytes_per_us,
    )


def _hbm_bytes(work: BaselineWork, sheet: Sheet, element_bytes: int = 2) -> float:
    """Bytes that one rank reads from and writes to HBM, kernel by kernel."""
    world, size = sheet.world_size, work.collective_bytes
    read, written = {
        "all_gather": (size, world * size),
        "reduce_scatter": (world * size, size),
        "all_reduce": (size, size),
        "all_to_all": (size, size),
        None: (0, 0),
    }[work.collective]
    total = float(read + written + 2 * sum(work.copies))
    if work.gemm is not None:
        m, n, k = work.gemm
        total += element_bytes * (m * k + k * n + m * n)
        between = written if work.collective == "all_gather" else read
        total -= between if between <= sheet.chip.l2_bytes else 0
    return total


def gemm_us(m: int, n: int, k: int, sheet: Sheet, element_bytes: int = 2) -> float:
    """Modelled microseconds of one cuBLAS GEMM, [m, k] x [k, n].

    launch + waves x (main loop of one tile + prologue and epilogue), for the best of the tiles the
    library has, where waves = ceil(tiles / SMs); never faster than reading the operands and
    writing the result once; slowed by the power limit when long.
    """
    if min(m, n, k) <= 0:
        raise ValueError(f"a GEMM of {m} x {n} x {k} has nothing to do")
    model = sheet.gemm_model
    waves_us = min(_waves_us(m, n, k, sheet, tile) for tile in model.tiles)
    moved = element_bytes * (m * k + k * n + m * n)
    memory_us = moved / sheet.simulator.hbm_bytes_per_us
    return model.launch_us + max(waves_us, memory_us) * _power_slowdown(2e-9 * m * n * k, sheet)


def collective_us(op: str, size: int, sheet: Sheet) -> float:
    """Modelled microseconds of one NCCL collective of `size` bytes (see BaselineWork).

    Between measured sizes time is linear in bytes (latency + bytes / bandwidth): the sizes are a
    factor 16 apart, where interpolating logarithms would give up to a quarter too much. Below the
    smallest size the time stays (latency), above the largest it grows with the bytes (bandwidth).
    """
    if size <= 0:
        raise ValueError(f"a collective of {size} bytes has nothing to do")
    return _interpolate(sheet.collective(op), size)


def copy_us(size: int, sheet: Sheet) -> float:
    """Modelled microseconds of one copy of `size` bytes that reorders dimensions on one GPU."""
    if size <= 0:
        raise ValueError(f"a copy of {size} bytes has nothing to do")
    rate = REORDERING_RATE * sheet.simulator.hbm_bytes_per_us
    return sheet.simulator.graph_launch_us + 2 * size / rate


def _waves_us(m: int, n: int, k: int, sheet: Sheet, tile: GemmTile) -> float:
    model = sheet.gemm_model
    sms = sheet.chip.sms
    waves = math.ceil(math.ceil(m / tile.m) * math.ceil(n / tile.n) / sms)
    flops_per_us = model.main_loop_tflops * 1e6 / sms * tile.relative_rate
    return waves * (2 * tile.m * tile.n * k / flops_per_us + model.wave_overhead_us)


def _power_slowdown(gflop: float, sheet: Sheet) -> float:
    model = sheet.gemm_model
    span = math.log(model.power_full_gflop / model.power_free_gflop)
    share = math.log(gflop / model.power_free_gflop) / span
    return 1 + (model.power_slowdown - 1) * min(1.0, max(0.0, share))


def _interpolate(table: Collective, size: int) -> float:
    (first, first_us), (last, last_us) = table.bytes_us[0], table.bytes_us[-1]
    if size <= first:
        return first_us
    if size >= last:
        return last_us * size / last
    for (low, low_us), (high, high_us) in itertools.pairwise(table.bytes_us):
        if size <= high:
            return low_us + (high_us - low_us) * (size - low) / (high - low)
    raise AssertionError("the sizes of a sheet's table increase")
