"""Fixtures for kernels in the simulator. The build cache is shared by all tests: it is addressed by
content, so a stale entry cannot be met."""

from pathlib import Path

import pytest

from pk_runtime.compiler import Compiler
from pk_runtime.execution import LocalExecutor
from pk_runtime.sheet import Sheet, load_sheet
from pk_runtime.simulator import Simulator
from pk_runtime.toolchain import ToolchainError, nvcc

CACHE = Path(__file__).parents[2] / ".pkforge" / "test-cache"


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    return Compiler(CACHE)


@pytest.fixture(scope="session")
def sheet() -> Sheet:
    return load_sheet("h200x4")


@pytest.fixture
def simulator(tmp_path: Path) -> Simulator:
    return Simulator(LocalExecutor(), tmp_path)


@pytest.fixture(scope="session")
def needs_nvcc() -> None:
    """Skips where there is no CUDA compiler, and only there."""
    try:
        nvcc()
    except ToolchainError as error:
        pytest.skip(str(error))
