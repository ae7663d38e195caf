"""The real runner and its engine, on a driver and a kernel in C that stand for GPUs."""

import dataclasses
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pk_runtime.execution import Command
from pk_runtime.gpu.abi import ABI_VERSION
from pk_runtime.toolchain import gxx
from problems.description import describe
from problems.hosting import InProcessHost
from problems.registry import get
from sandbox.gpu import clock
from sandbox.gpu.bench import Bench
from sandbox.gpu.check import Check, plan
from sandbox.gpu.device import MEETING_BYTES
from sandbox.gpu.group import Process, RunnerGroup, unprotected
from sandbox.gpu.pool import GpuPool
from sandbox.gpu.serve import close_files
from sandbox.stages import StageFailed
from tests.sandbox.gpu.conftest import WORLD, small_cache

SOURCES = Path(__file__).parent / "driver"
Make = Callable[..., RunnerGroup]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in for libcuda."""
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libcuda.so.1"
    _compile(SOURCES / "libcuda.c", library, "-Wl,-soname,libcuda.so.1")
    return folder


@pytest.fixture
def runners(driver: Path, pool: GpuPool, tmp_path: Path) -> Iterator[Make]:
    """Makes a group of real runners with a kernel built with the given macros."""
    groups: list[RunnerGroup] = []

    def starter(command: Command, channel: socket.socket) -> Process:
        env = {**command.env, "LD_LIBRARY_PATH": str(driver)}
        return unprotected(dataclasses.replace(command, env=env), channel)

    def make(*macros: str) -> RunnerGroup:
        pool.ready()
        library = tmp_path / "kernel.so"
        known = (f"-DABI={ABI_VERSION}", *(f"-D{macro}" for macro in macros))
        _compile(SOURCES / "kernel.c", library, *known, str(driver / "libcuda.so.1"))
        group = RunnerGroup(starter, WORLD, tmp_path / "work", read_only=(), wait_s=0.3)
        groups.append(group)
        common = {"library": str(library), "helpers": str(library), "timeout_ms": 300,
                  "meeting_bytes": MEETING_BYTES}  # fmt: skip
        lent = pool.lend("lend", {"key": "meeting", "nbytes": MEETING_BYTES})[1]
        files = [file for each in lent for file in each]
        bodies = [{**common, "rank": rank, "device": rank} for rank in range(WORLD)]
        started = group.ask("start", bodies, timeout_s=20.0, files=files)
        close_files(files)
        assert [answer["device"] for answer in started] == ["Stand-in"] * WORLD
        return group

    yield make
    for group in groups:
        group.close()


def _compile(source: Path, result: Path, *options: str) -> None:
    argv = [str(gxx().path), "-x", "c", "-std=gnu11", "-O1", "-w", "-shared", "-fPIC", str(source)]
    subprocess.run([*argv, "-x", "none", *options, "-o", str(result)], check=True, timeout=60)


def test_a_kernel_is_checked_through_the_real_engine(pool: GpuPool, runners: Make) -> None:
    check = Check(pool, runners(), InProcessHost(get("alltoall")), 7, lambda stage, detail: None)
    evidence = check.run(plan("full", ["tiny", "odd"], WORLD))
    assert [entry["blocks"] for entry in evidence["checks"]] == [132, 132]


def test_outputs_of_a_rank_that_is_not_in_the_launch_are_its_own(
    pool: GpuPool, runners: Make
) -> None:
    host = InProcessHost(get("alltoall"))
    check = Check(pool, runners("EARLY"), host, 7, lambda stage, detail: None)
    with pytest.raises(StageFailed) as caught:
        check.run(plan("quick", ["tiny"], WORLD))
    assert caught.value.status == "race"
    assert "with inputs that reach rank" in caught.value.evidence["summary"]


def test_a_record_of_the_kernel_arrives_as_evidence(pool: GpuPool, runners: Make) -> None:
    host = InProcessHost(get("alltoall"))
    check = Check(pool, runners("DEADLOCK"), host, 7, lambda stage, detail: None)
    with pytest.raises(StageFailed) as caught:
        check.run(plan("quick", ["tiny"], WORLD))
    assert caught.value.status == "deadlock"
    (wait,) = caught.value.evidence["waits"]
    assert wait == {
        "rank": 1, "block": 1, "role": "communicator", "launch": 5, "signal": "signal 'ready'",
        "slot": 12, "expected": 4, "seen": 3,
    }  # fmt: skip


def test_a_refusal_of_setup_arrives_as_evidence(pool: GpuPool, runners: Make) -> None:
    host = InProcessHost(get("allgather"))
    check = Check(pool, runners(), host, 7, lambda stage, detail: None)
    with pytest.raises(StageFailed) as caught:
        check.run(plan("quick", ["tiny"], WORLD))
    assert caught.value.status == "crashed"
    assert "x must be [W, M, N]" in caught.value.evidence["summary"]


@pytest.mark.slow
def test_graphs_and_events_of_the_real_engine(
    pool: GpuPool, runners: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine stretches the judge's clock and not the events, so they need not go together.
    monkeypatch.setattr(clock, "believable", lambda latency_us, throughput_us: True)
    bench = Bench(pool, runners(), small_cache(), 7, lambda stage, detail: None)
    (timing,) = bench.run(describe(get("alltoall"), WORLD), ["m1024n1024"])
    latency = timing.detail["latency"]["candidate"]
    assert latency["count"] == 112
    assert latency["median_us"] > 200
