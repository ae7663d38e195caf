"""What kind of mistake a deadlock is: each class with a faulty kernel and its fixed twin."""

from typing import Any

import pytest
import torch

from pk_runtime.compiler import Compiler
from pk_runtime.exploration import Grid
from pk_runtime.schedules import Schedule
from pk_runtime.sheet import Sheet
from pk_runtime.simulator import FunctionalRun, Simulator, TensorSpec
from tests.simulator.running import BF16, body, kernel

HEAD = """
  struct args { layout<bf16> x, y; signals ready, other; barrier_state phase; MEMBERS };
  struct comm_shared {};
  static void setup(host& h, args& g) {
    h.input("x", g.x); h.output("y", g.y);
    h.signals("ready", g.ready, 4, PER_LAUNCH); h.signals("other", g.other, 4, 1);
    h.barrier("phase", g.phase); SETUP
  }
"""
COMMUNICATOR = "PK_ROLE communicator(group<> self, const args& g, comm_shared&) {"


def kernel_of(
    role: str, *, per_launch: str = "h.world()", members: str = "", setup: str = ""
) -> str:
    head = HEAD.replace("PER_LAUNCH", per_launch).replace("MEMBERS", members)
    return body(head.replace("SETUP", setup) + COMMUNICATOR + role + "}")


# Block 0 of every rank signals every rank's slot 0 and waits for all of them.
def meeting(*, signal: str = "signal_all(self, g.ready, 0);", count: str = "self.world()",
            before: str = "", per_launch: str = "h.world()") -> str:  # fmt: skip
    role = f"if (self.block() != 0) return; {before} {signal} wait(self, g.ready, 0, {count});"
    return kernel_of(role, per_launch=per_launch)


BLOCKS = "signal_all(self, g.ready, 0); wait(self, g.ready, 0, self.world() * {n});"
ORDER = """
    if (self.block() != 0) return;
    int next = (self.rank() + 1) % self.world(), first = {first};
    for (int i = 0; i < 2; ++i)
      if ((i == 0) == (first == 0)) signal(self, g.ready, next, 0); else wait(self, g.ready, 0, 1);
"""
LETTER = """
    if (self.block() != 0) return;
    slab<bf16, 16, 128> v, u; load(self, v, g.x, {{0, 0}});
    post(self, g.box, (self.rank() + 1) % self.world(), {slot}, v);
    take(self, u, g.box, (self.rank() + self.world() - 1) % self.world(), 0);
"""
BOX = {"members": "mailbox<slab<bf16, 16, 128>> box;", "setup": 'h.mailbox("box", g.box, 2);'}
RING = """
  using T = tile<bf16, 64, 64>;
  struct args {{ layout<bf16> x, y; }};
  struct shared {{ copy_ring<T, 2> pipe; }};
  static void setup(host& h, args& g) {{ h.input("x", g.x); h.output("y", g.y); }}
  PK_ROLE loader(issuer self, const args& g, shared& s) {{
    auto pipe = s.pipe.producer(self);
    for (int i = 0; self.block() == 0 && i < {loads}; ++i) {{
      T& t = pipe.acquire(); pipe.load(t, g.x, {{0, i}}); pipe.commit();
    }}
  }}
  PK_ROLE storer(issuer self, const args& g, shared& s) {{
    auto pipe = s.pipe.consumer(self);
    for (int i = 0; self.block() == 0 && i < 2; ++i) {{
      store_async(self, g.y, {{0, i}}, pipe.wait()); pipe.release();
    }}
  }}
"""
PHASES = "barrier(self, g.phase); if ({again}) barrier(self, g.phase);"

# class: faulty kernel, fixed kernel, what the cause says, the run's settings
CASES: dict[str, tuple[str, str, list[str], dict[str, Any]]] = {
    "missing_signal": (
        meeting(signal="for (int r = 1; r < self.world(); ++r) signal(self, g.ready, r, 0);",
                per_launch="h.world()"),
        meeting(),
        ["nobody is left who could signal signal 'ready' slot 0 of rank 0"],
        {},
    ),
    "count_mismatch": (
        meeting(count="self.world() + 1"), meeting(), ["waits for 3 signals", "declares 2"], {},
    ),
    "count_mismatch, all signalled": (
        meeting(count="2 * self.world()", per_launch="2 * h.world()"),
        meeting(),
        ["every rank has signalled signal 'ready' slot 0", "2 times", "the 4 expected"],
        {},
    ),
    "wrong_peer": (
        meeting(signal="for (int r = 0; r < self.world(); ++r) signal(self, g.ready, 0, 0);"),
        meeting(),
        ["has not signalled 'ready' slot 0 of rank 1, but slot 0 of rank 0", "got 4 signals and "
         "should get 2 (kernel.cu:"],
        {},
    ),
    "wrong_peer, slot": (
        kernel_of(LETTER.format(slot=1), **BOX), kernel_of(LETTER.format(slot=0), **BOX),
        ["has posted to slot 1 of rank", "which nobody has taken", "not to slot 0"], {},
    ),
    "rank_divergent": (
        meeting(before="if (self.rank() == 1) return;"),
        meeting(),
        ["all workers of rank 1 have finished launch 0, having signalled 'ready' 0 times",
         "rank 0 did so 2 times"],
        {},
    ),
    "rank_divergent, barrier": (
        kernel_of(PHASES.format(again="self.rank() == 0")), kernel_of(PHASES.format(again="true")),
        ["all workers of rank 1 have", "'phase' 10 times in all; rank 0 did so 20 times"], {},
    ),
    "rank_divergent, grids": (
        kernel_of(BLOCKS.format(n="self.blocks()"), per_launch="2 * h.world()"),
        "",
        ["the grids differ: rank 0 has 2 blocks and rank 1 has 1"],
        {"grid": Grid((2, 1)), "fixed_grid": Grid(2)},
    ),
    "grid_not_coresident": (
        kernel_of(BLOCKS.format(n="self.blocks()"), per_launch="3 * h.world()"),
        "",
        ["1 of the 3 blocks of rank 0 have not begun", "only 2 run at a time"],
        {"grid": Grid(3, resident=2), "fixed_grid": Grid(3)},
    ),
    "role_order_cycle": (
        kernel_of(ORDER.format(first="1"), per_launch="1"),
        kernel_of(ORDER.format(first="self.rank()"), per_launch="1"),
        ["a cycle: rank", "waits for signal 'ready' slot 0 -> rank"],
        {},
    ),
    "pipeline_phase": (
        body(RING.format(loads=1)), body(RING.format(loads=2)),
        ["ring #0 of rank 0 block 0", "1 filled, 1 emptied", "the role that fills it has finished"],
        {},
    ),
    "launch_order": (
        meeting(per_launch="h.world() + 1"), meeting(),
        ["in launch 0 this counter got 2 signals and setup() declares 3 per launch"],
        {"launches": 3},
    ),
    "livelock": (
        meeting(before="for (volatile int i = 0; i >= 0;) {}"), meeting(),
        ["without reaching an operation"], {"wall_s": 1.0},
    ),
}  # fmt: skip


def _run(
    source: str,
    compiler: Compiler,
    simulator: Simulator,
    sheet: Sheet,
    *,
    schedule: str = "eager",
    grid: Grid | None = None,
    launches: int = 1,
    wall_s: float = 5.0,
) -> FunctionalRun:
    program = compiler.simulator(kernel(source))
    inputs = [[{"x": torch.ones(64, 128, dtype=BF16)} for _ in range(2)] for _ in range(launches)]
    return simulator.functional(
        program, launches=inputs, outputs=[TensorSpec("y", (64, 128), BF16)], sheet=sheet,
        schedule=Schedule(schedule), grid=grid, wall_s=wall_s,
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_deadlock_has_a_class_and_the_fixed_kernel_has_none(
    name: str, compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    faulty, fixed, words, settings = CASES[name]
    fixed_grid = settings.get("fixed_grid")
    settings = {key: value for key, value in settings.items() if key != "fixed_grid"}
    for schedule in ("eager", "random:5"):
        found = _run(faulty, compiler, simulator, sheet, schedule=schedule, **settings)
        assert found.diagnosis.get("class") == name.partition(",")[0], found.diagnosis
        text = found.diagnosis.get("cause", found.diagnosis["summary"])
        for word in words:
            assert word in text
        settings = {**settings, "wall_s": settings.get("wall_s", 5.0)}
    settings.pop("grid", None)
    fine = _run(fixed or faulty, compiler, simulator, sheet, grid=fixed_grid, **settings)
    assert fine.outcome == "finished", fine.diagnosis
