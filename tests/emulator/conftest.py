"""Fixtures for kernels in the emulator; the build cache is shared by all tests, as it is
addressed by content."""

from pathlib import Path

import pytest

from pk_runtime.emulator import EmulatorBuilder

CACHE = Path(__file__).parents[2] / ".pkforge" / "test-cache"


@pytest.fixture(scope="session")
def cache() -> Path:
    return CACHE


@pytest.fixture(scope="session")
def builder(cache: Path) -> EmulatorBuilder:
    return EmulatorBuilder(cache)
