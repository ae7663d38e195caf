"""The judge of GPUs without GPUs: real workers on host memory, stand-ins for runners."""

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pk_runtime.sheet import Sheet, load_sheet
from sandbox.gpu.group import RunnerGroup, unprotected
from sandbox.gpu.pool import GpuPool

WORLD = 2
STAND_IN = (sys.executable, "-S", "-m", "tests.sandbox.gpu.stand_in")

Runners = Callable[[str], RunnerGroup]


def small_cache(*, nvlink: float = 450.0) -> Sheet:
    """A machine with a small cache, so that few sets go beyond it."""
    real = load_sheet("h200x4")
    return dataclasses.replace(
        real,
        chip=dataclasses.replace(real.chip, l2_bytes=1 << 20),
        peaks=dataclasses.replace(real.peaks, nvlink_gb_per_s=nvlink),
    )


@pytest.fixture(scope="session")
def pool() -> Iterator[GpuPool]:
    """Workers on the CPU, warm between tests."""
    made = GpuPool(WORLD, device="cpu")
    yield made
    made.close()


@pytest.fixture
def runners(tmp_path: Path) -> Iterator[Runners]:
    """Makes a group of started stand-ins that do as they are told; all are ended afterwards."""
    groups: list[RunnerGroup] = []

    def make(does: str) -> RunnerGroup:
        library = tmp_path / "kernel.json"
        library.write_text(json.dumps({"does": does}))
        group = RunnerGroup(
            unprotected, WORLD, tmp_path / "work", read_only=(), wait_s=0.3, argv=STAND_IN
        )
        groups.append(group)
        bodies = [{"rank": rank, "library": str(library)} for rank in range(WORLD)]
        group.ask("start", bodies, timeout_s=20.0)
        return group

    yield make
    for group in groups:
        group.close()
