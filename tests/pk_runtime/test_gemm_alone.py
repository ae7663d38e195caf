"""The GEMM that is timed beside cuBLAS: the main loop alone, on ranks that do not communicate."""

import pytest
import torch

from benchmarks.gpu_gemm.__main__ import combinations, gemm
from pk_runtime.compiler import Compiler
from pk_runtime.disassembly import opcodes, resource_usage
from pk_runtime.sheet import Sheet
from pk_runtime.simulator import Simulator
from tests.simulator.running import BF16, run


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("knobs", [{}, {"block_n": 192, "stages": 3, "super_m": 1}])
def test_every_rank_has_its_product(
    world: int, knobs: dict[str, int], compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    m, n, k = 300, 200, 136
    inputs = [
        {"a": torch.randn(m, k).to(BF16), "b": torch.randn(k, n).to(BF16)} for _ in range(world)
    ]
    program = compiler.simulator(gemm(knobs))
    found = run(simulator, program, sheet, [inputs], {"c": (m, n)}, seed=3)
    assert found.outcome == "finished", found.diagnosis
    for mine, out in zip(inputs, found.outputs[0], strict=True):
        want = mine["a"].double() @ mine["b"].double()
        torch.testing.assert_close(out["c"].double(), want, rtol=2**-7, atol=2**-4)


@pytest.mark.slow
@pytest.mark.usefixtures("needs_nvcc")
def test_it_has_no_spills(compiler: Compiler) -> None:
    cubin = compiler.cubin(gemm({}))
    assert opcodes(cubin)["HGMMA"] > 0
    assert all(kernel.spill_store_bytes == 0 for kernel in resource_usage(cubin))


def test_knobs_are_every_combination() -> None:
    assert combinations("") == [{}]
    assert combinations("stages=3,4;super_m=1") == [
        {"stages": 3, "super_m": 1},
        {"stages": 4, "super_m": 1},
    ]
    with pytest.raises(ValueError, match="NAME=VALUE"):
        combinations("stages")
