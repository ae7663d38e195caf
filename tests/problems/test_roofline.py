"""Rooflines on the H200 sheet: the numbers of the reference catalogue."""

import pytest

from pk_runtime.baseline import BaselineWork
from pk_runtime.sheet import load_sheet
from problems.contract import Costs
from problems.registry import get
from problems.roofline import roofline, roofline_of

EXPECTED = [
    ("allreduce", "default", 6.99, "nvlink"),
    ("allreduce", "m8192n4096", 224, "nvlink"),
    ("allreduce", "m32768n8192", 1790, "nvlink"),
    ("allgather", "default", 14.0, "nvlink"),
    ("allgather", "m8192n4096", 447, "nvlink"),
    ("alltoall", "m32768n8192", 3579, "nvlink"),
    ("gemm_allreduce", "m64n8192k7168", 24.9, "hbm"),
    ("gemm_allreduce", "m8192n8192k7168", 973, "compute"),
    ("gemm_reducescatter", "default", 3.5, "nvlink"),
    ("gemm_reducescatter", "m64n7168k18432", 13.9, "hbm"),
    ("gemm_reducescatter", "m2048n2880k2880", 19.7, "nvlink"),
    ("gemm_reducescatter", "m8192n8192k29568", 1003, "compute"),
    ("sp_ag_gemm_m_sharded", "m2048n28672k8192", 243, "compute"),
    ("sp_ag_gemm_m_sharded", "m8192n28672k8192", 973, "compute"),
]


@pytest.mark.parametrize(("slug", "shape", "us", "binding"), EXPECTED)
def test_roofline(slug: str, shape: str, us: float, binding: str) -> None:
    problem = get(slug)
    found = roofline(problem, problem.shape(shape).dims, load_sheet("h200x4"), 4)
    assert found.us == pytest.approx(us, rel=0.004)
    assert found.binding == binding
    assert found.us == max(found.terms_us.values())


def test_the_peak_is_the_one_the_flops_are_counted_against() -> None:
    costs = Costs(1e9, 0, 0, BaselineWork(None, "all_reduce", 1))
    sheet = load_sheet("h200x4")
    assert roofline_of(costs, "bf16", sheet).us == pytest.approx(1e3 / sheet.peaks.bf16_tflops)
    assert roofline_of(costs, "fp32", sheet).us == pytest.approx(1e3 / sheet.peaks.fp32_tflops)
