"""Three bugs from the histories of other projects, rebuilt on the low-level operations: each is
caught and explained, and its fixed twin passes."""

from pathlib import Path

import pytest
import torch

from pk_runtime.candidate import Candidate
from pk_runtime.emulator import Emulation, Emulator, EmulatorBuilder
from pk_runtime.execution import LocalExecutor
from pk_runtime.run_folder import RankTensors, TensorSpec

SOURCES = Path(__file__).parent / "sources"
SHAPE = (64, 64)

pytestmark = pytest.mark.timeout(300)  # the first test builds the engine


def inputs(launches: int, world: int) -> list[list[RankTensors]]:
    make = torch.Generator().manual_seed(3)
    return [
        [{"x": torch.randn(SHAPE, generator=make).bfloat16()} for _ in range(world)]
        for _ in range(launches)
    ]


def emulate(
    builder: EmulatorBuilder, folder: Path, name: str, *, fixed: int, seed: int
) -> tuple[Emulation, list[list[RankTensors]]]:
    source = (SOURCES / f"{name}.cu").read_text()
    program = builder.program(Candidate("pk", {"kernel.cu": source}, {"fixed": fixed}))
    launches = inputs(3, 2)
    specs = [TensorSpec("y", SHAPE, torch.bfloat16)]
    runner = Emulator(LocalExecutor(), folder)
    return runner.run(program, launches=launches, outputs=specs, blocks=1, seed=seed), launches


def line_of(name: str, text: str) -> str:
    lines = (SOURCES / f"{name}.cu").read_text().splitlines()
    return f"kernel.cu:{next(i for i, line in enumerate(lines, 1) if text in line)}"


def test_a_signal_after_a_source_read_wait(builder: EmulatorBuilder, tmp_path: Path) -> None:
    name = "signal_after_read"
    run, _ = emulate(builder, tmp_path, name, fixed=0, seed=0)
    assert run.outcome == "race", str(run)
    found = next(f for f in run.findings if f.kind == "read_wait")
    assert "scratch 'box'" in found.object
    assert "a bulk store writes it" in found.first.does
    assert "a bulk load reads it" in found.second.does
    assert found.first.rank != found.second.rank
    assert found.first.role == found.second.role == "communicator"
    assert line_of(name, "store_async(self, g.box[next]") in found.first.lines
    assert line_of(name, "// the reader") in found.second.lines
    assert line_of(name, "else sm90::bulk_wait_read()") in found.culprit
    assert "wait for the whole group before the signal" in found.missing


def test_a_barrier_that_a_fast_rank_enters_again(builder: EmulatorBuilder, tmp_path: Path) -> None:
    runs = [emulate(builder, tmp_path, "barrier_overshoot", fixed=0, seed=s)[0] for s in range(6)]
    run = next(r for r in runs if r.outcome == "deadlock")
    assert "waited for a barrier of signals 'all'" in run.summary
    assert "saw 3, wanted 2" in run.summary
    assert "a fast rank has signalled again" in run.summary
    assert any("signals 'all'" in w["for"] for w in run.waiting)


def test_a_relaxed_wait_before_a_bulk_load(builder: EmulatorBuilder, tmp_path: Path) -> None:
    name = "relaxed_wait"
    run, _ = emulate(builder, tmp_path, name, fixed=0, seed=0)
    assert run.outcome == "race", str(run)
    found = next(f for f in run.findings if f.kind == "relaxed_wait")
    assert "scratch 'box'" in found.object
    assert line_of(name, "store_async(self, g.box[next]") in found.first.lines
    assert line_of(name, "ld.relaxed.sys.global.u32") in found.culprit
    assert "must be ld.acquire" in found.missing


@pytest.mark.parametrize("name", ["signal_after_read", "barrier_overshoot", "relaxed_wait"])
def test_the_fixed_twin_passes(builder: EmulatorBuilder, tmp_path: Path, name: str) -> None:
    for seed in range(4):
        run, launches = emulate(builder, tmp_path, name, fixed=1, seed=seed)
        assert run.outcome == "finished", str(run)
        if name != "barrier_overshoot":  # which moves nothing
            for got, given in zip(run.outputs, launches, strict=True):
                for rank in range(2):
                    assert torch.equal(got[rank]["y"], given[1 - rank]["x"])
