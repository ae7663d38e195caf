"""The least time an operator can take on a machine: the longest of compute, NVLink and HBM time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pk_runtime.sheet import Sheet
from problems.contract import Costs, Dims, Peak, Problem

Resource = Literal["compute", "nvlink", "hbm"]


@dataclass(frozen=True)
class Roofline:
    """Least time in microseconds, what binds it, and the time of each resource alone."""

    us: float
    binding: Resource
    terms_us: Mapping[Resource, float]


def roofline(problem: Problem, dims: Dims, sheet: Sheet, world_size: int) -> Roofline:
    """The roofline of a problem at one size, at the sheet's nominal peaks; no latency term."""
    return roofline_of(problem.costs(dims, world_size), problem.peak, sheet)


def roofline_of(costs: Costs, peak: Peak, sheet: Sheet) -> Roofline:
    """The roofline of given costs; `peak` names the compute rate the FLOPs are counted against."""
    peaks = sheet.peaks
    tflops = {
        "fp8": peaks.fp8_tflops,
        "bf16": peaks.bf16_tflops,
        "tf32": peaks.tf32_tflops,
        "fp32": peaks.fp32_tflops,
        "fp64": peaks.fp64_tflops,
    }
    terms: dict[Resource, float] = {
        "compute": costs.flops / (tflops[peak] * 1e6),
        "nvlink": costs.nvlink_bytes / (peaks.nvlink_gb_per_s * 1e3),
        "hbm": costs.hbm_bytes / (peaks.hbm_gb_per_s * 1e3),
    }
    binding = max(terms, key=lambda resource: terms[resource])
    return Roofline(terms[binding], binding, terms)
