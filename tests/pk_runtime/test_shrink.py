"""Shrinking: the smallest setting with the same kind of finding, from the first one met."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import Compiler
from pk_runtime.execution import LocalExecutor
from pk_runtime.exploration import Grid
from pk_runtime.schedules import EAGER, Schedule
from pk_runtime.sheet import load_sheet
from pk_runtime.shrink import Case, Finding, Reproducer, Setting, finding_of, shrink
from pk_runtime.simulator import Simulator, TensorSpec

CACHE = Path(__file__).parents[2] / ".pkforge" / "test-cache"
FIRST = Setting(4, 3, {"M": 256}, Grid(5), Schedule("random:9"))


def _dims(setting: Setting) -> Iterable[Mapping[str, int]]:
    return ({"M": m} for m in (64, 128) if m < setting.dims["M"])


def test_every_part_becomes_as_small_as_the_finding_allows() -> None:
    tried = []

    def reproduce(setting: Setting, kind: str, wall_s: float) -> Finding | None:
        assert 0 < wall_s <= 60
        tried.append(setting)
        shows = setting.world_size >= 3 and setting.launches >= 2 and setting.dims["M"] >= 128
        return Finding(kind, replace(setting, schedule=EAGER)) if shows else None

    found = shrink(Finding("race", FIRST), reproduce, smaller_dims=_dims, wall_s=60)
    assert found == Finding("race", Setting(3, 2, {"M": 128}, Grid(1), EAGER))
    assert len(tried) == len({repr(replace(setting, schedule=EAGER)) for setting in tried})


def test_without_time_or_anything_smaller_it_stays_as_it_is() -> None:
    first = Finding("race", FIRST)
    began = time.monotonic()
    assert shrink(first, lambda *_: first, wall_s=0) is first
    assert time.monotonic() - began < 60
    assert shrink(first, lambda *_: None, smaller_dims=_dims) is first


def test_grids_by_rank_stay_by_rank() -> None:
    setting = replace(FIRST, grid=Grid((4, 3, 4, 4)))
    seen = []

    def reproduce(smaller: Setting, kind: str, wall_s: float) -> Finding | None:
        seen.append(smaller.grid.compute_sms)
        return None

    shrink(Finding("deadlock", setting), reproduce)
    assert seen == [(4, 3, 4, 4), (4, 3, 4, 4), (4, 3), (4, 3, 4), (3, 2, 3, 3)]


KERNEL = """
#include <pk/pk.h>
using namespace pk;
struct k {
  struct args { layout<bf16> x, y; signals ready; };
  struct comm_shared {};
  static void setup(host& h, args& g) {
    h.input("x", g.x); h.output("y", g.y); h.signals("ready", g.ready, 1, h.world());
  }
  PK_ROLE communicator(group<> self, const args& g, comm_shared&) {
    if (self.block() != 0) return;
    if (self.rank() != 2) signal_all(self, g.ready, 0);
    wait(self, g.ready, 0, self.world());
  }
};
PK_KERNEL(k)
"""


def test_a_deadlock_of_a_kernel_is_shrunk_and_replays(tmp_path: Path) -> None:
    program = Compiler(CACHE).simulator(Candidate("pk", {"kernel.cu": KERNEL}, {}))
    simulator, sheet = Simulator(LocalExecutor(), tmp_path), load_sheet("h200x4")

    def make(setting: Setting) -> Case:
        x = torch.ones(setting.dims["M"], 64, dtype=torch.bfloat16)
        launches = [[{"x": x}] * setting.world_size] * setting.launches
        return Case(launches, [TensorSpec("y", tuple(x.shape), x.dtype)])

    case = make(FIRST)
    found = simulator.explore(
        program, launches=case.launches, outputs=case.outputs, sheet=sheet, strategy=[EAGER]
    )
    first = finding_of(found, case, FIRST)
    assert first is not None
    assert first.kind == "deadlock: missing_signal"
    assert first.setting == replace(FIRST, schedule=EAGER)
    # Rank 2 does not signal: with fewer than three ranks there is none.
    small = shrink(
        first, Reproducer(simulator, program, sheet, make), smaller_dims=_dims, wall_s=60
    )
    assert small.setting == Setting(3, 1, {"M": 64}, Grid(1), EAGER)
    case = make(small.setting)
    again = simulator.functional(
        program, launches=case.launches, outputs=case.outputs, sheet=sheet, grid=small.setting.grid,
        schedule=small.setting.schedule,
    )  # fmt: skip
    assert again.diagnosis == small.report
