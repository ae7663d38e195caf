"""The shipped kernels as files: all there, with knobs, lowered to tensor cores and TMA."""

from pathlib import Path

import pytest

from pk_runtime import kernels
from pk_runtime.candidate import declared_knobs, validate
from pk_runtime.compiler import Compiler
from pk_runtime.disassembly import opcodes, resource_usage
from pk_runtime.kernels import shipped, shipped_kernel, shipped_names, shipped_problems
from problems.registry import catalogue

GEMMS = ("allgather_gemm", "gemm_allreduce", "gemm_allscatter", "gemm_reducescatter")


def test_every_file_is_shipped_under_its_name() -> None:
    files = sorted(path.stem for path in Path(kernels.__file__).parent.glob("*.cu"))
    assert list(shipped_names()) == files


def test_every_problem_has_its_kernels() -> None:
    assert set(shipped_problems()) == {problem.slug for problem in catalogue()}
    assert all(shipped(slug) for slug in shipped_problems())
    assert shipped_kernel("allreduce_one_shot") in shipped("allreduce")
    assert shipped("no_such_problem") == ()


def test_the_documentation_lists_every_kernel() -> None:
    text = (Path(__file__).parents[2] / "docs" / "problems.md").read_text(encoding="utf-8")
    missing = [name for name in shipped_names() if f"`{name}`" not in text]
    assert missing == []


def test_an_unknown_kernel_lists_the_known_ones() -> None:
    with pytest.raises(KeyError, match="gemm_reducescatter"):
        shipped_kernel("gemm")


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_kernel_is_valid_and_has_knobs(name: str) -> None:
    candidate = shipped_kernel(name)
    validate(candidate)
    assert candidate.knobs == {}
    assert declared_knobs(candidate.source)


@pytest.mark.slow
@pytest.mark.usefixtures("needs_nvcc")
@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_kernel_lowers_to_tma_and_tensor_cores(compiler: Compiler, name: str) -> None:
    cubin = compiler.cubin(shipped_kernel(name))
    counts = opcodes(cubin)
    through_registers = "struct shared" not in shipped_kernel(name).source
    assert through_registers or counts["UTMALDG"] + counts["UBLKCP"] > 0, counts
    assert through_registers or counts["UTMASTG"] + counts["UTMAREDG"] + counts["UBLKCP"] > 0
    if name in GEMMS:
        assert counts["HGMMA"] > 0, counts
        assert counts["UTMALDG"] > 0, counts
        assert counts["UTMASTG"] + counts["UTMAREDG"] > 0, counts
    assert all(kernel.spill_store_bytes == 0 for kernel in resource_usage(cubin))
