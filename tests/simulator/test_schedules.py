"""Schedules: what each strategy finds, that a text repeats a run, and how many orders there are."""

import pytest
import torch

from pk_runtime.compiler import Compiler
from pk_runtime.exploration import Exploration, Grid
from pk_runtime.schedules import Schedule, ScheduleError, Search, drawn
from pk_runtime.sheet import Sheet
from pk_runtime.simulator import Simulator, TensorSpec
from tests.simulator.running import BF16, body, kernel

Y = [TensorSpec("y", (64, 64), BF16)]

# Every rank signals rank 0 once; rank 0 waits for 1, 2, ... signals, up to x's rows; x's columns
# are the number of waits.
TICKETS = body("""
  struct args { layout<bf16> x, y; signals ready; };
  struct comm_shared {};
  static void setup(host& h, args& g) {
    h.input("x", g.x); h.output("y", g.y); h.signals("ready", g.ready, 1, h.world());
  }
  PK_ROLE communicator(group<> self, const args& g, comm_shared&) {
    if (self.block() != 0) return;
    signal(self, g.ready, 0, 0);
    for (int n = 1; self.rank() == 0 && n <= g.x.cols; ++n)
      wait(self, g.ready, 0, min(n, g.x.rows));
  }
""")

# Blocks 0 and 1 of rank 1 send a tile and a signal each, to one counter. Rank 0 waits for COUNT
# signals and passes on block 0's tile: with 1 that is right only if block 0's signal comes first.
FIRST_COME = """
  struct args { layout<bf16> x, y; parallel_layout<bf16> box; signals ready; };
  struct comm_shared {};
  static void setup(host& h, args& g) {
    h.input("x", g.x); h.output("y", g.y);
    h.scratch("box", g.box, 2, 16, 128); h.signals("ready", g.ready, 1, 2);
  }
  PK_ROLE communicator(group<> self, const args& g, comm_shared&) {
    if (self.block() > 1) return;
    slab<bf16, 16, 128> v;
    load(self, v, g.x, {0, 0});
    if (self.rank() == 1) {
      store(self, g.box[0], {self.block(), 0, 0}, v);
      signal(self, g.ready, 0, 0);
    } else if (self.block() == 0) {
      wait(self, g.ready, 0, COUNT);
      load(self, v, g.box[0], {0, 0, 0});
      store(self, g.y, {0, 0}, v);
    }
  }
"""


def first_come(count: int) -> str:
    return body(FIRST_COME.replace("COUNT", str(count)))


ADDITIONS = body("""
  using T = tile<bf16, 64, 64>;
  struct args { layout<bf16> x; parallel_layout<bf16> y; signals ready; };
  struct shared { copy_ring<T, 1> pipe; };
  static void setup(host& h, args& g) {
    h.input("x", g.x); h.output("y", g.y); h.signals("ready", g.ready, 1, 1);
  }
  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.producer(self);
    T& t = pipe.acquire(); pipe.load(t, g.x, {0, 0}); pipe.commit();
  }
  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.consumer(self);
    T& t = pipe.wait();
    if (self.rank() == 0) {
      store_async(self, g.y[0], {0, 0}, t);
      signal_all(self, g.ready, 0);
    } else {
      wait(self, g.ready, 0, 1);
      store_add_async(self, g.y[0], {0, 0}, t);
    }
    pipe.release();
  }
""")


def _inputs(
    world: int, rows: int = 64, cols: int = 64, launches: int = 1
) -> list[list[dict[str, torch.Tensor]]]:
    return [
        [{"x": torch.ones(rows, cols, dtype=BF16)} for _ in range(world)] for _ in range(launches)
    ]


def _explore(
    source: str, compiler: Compiler, simulator: Simulator, sheet: Sheet, *, world: int = 2,
    rows: int = 64, cols: int = 64, strategy: Search = "exhaustive", schedules: int = 2000,
    grid: Grid = Grid(1), seed: int = 0, wall_s: float = 20.0,
) -> Exploration:  # fmt: skip
    program = compiler.simulator(kernel(source))
    return simulator.explore(
        program, launches=_inputs(world, rows, cols), outputs=Y, sheet=sheet, strategy=strategy,
        schedules=schedules, grid=grid, seed=seed, wall_s=wall_s,
    )  # fmt: skip


# A wait for n of m signals can have seen any set of at least n: the sum of C(m, k) over k >= n.
# Waits for 1, 2, ..., m in a row: each signal comes before one of them, and the k-th wait has seen
# k at least. Those are the parking functions, of which there are (m + 1)^(m - 1).
@pytest.mark.parametrize(
    ("world", "needed", "waits", "orders"),
    [
        (2, 1, 1, 3),  # C(2,1) + C(2,2)
        (2, 2, 2, 3),  # (2+1)^1
        (3, 1, 1, 7),  # C(3,1) + C(3,2) + C(3,3)
        (3, 2, 2, 16),  # waits for 1 and 2; a third for 3 would always see all: (3+1)^2
        (3, 3, 3, 16),  # (3+1)^2
        (4, 4, 4, 125),  # (4+1)^3
    ],
)
def test_the_exhaustive_search_runs_every_order_once(
    world: int,
    needed: int,
    waits: int,
    orders: int,
    compiler: Compiler,
    simulator: Simulator,
    sheet: Sheet,
) -> None:
    found = _explore(TICKETS, compiler, simulator, sheet, world=world, rows=needed, cols=waits)
    assert (found.outcome, found.schedules_run, found.complete) == ("finished", orders, True)
    assert (found.redundant, found.stopped_by) == (0, "")
    assert len(found.outputs) == 1


def test_a_bound_ends_the_search_and_says_so(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    found = _explore(TICKETS, compiler, simulator, sheet, world=4, rows=4, cols=4, schedules=50)
    assert (found.schedules_run, found.complete, found.stopped_by) == (50, False, "number")
    found = _explore(TICKETS, compiler, simulator, sheet, world=4, rows=4, cols=4, wall_s=0.01)
    assert (found.complete, found.stopped_by) == (False, "wall")
    assert 0 < found.schedules_run < 125


def test_a_wait_that_can_be_satisfied_by_another_signal_is_a_race_in_some_order(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    fine = _explore(first_come(2), compiler, simulator, sheet, grid=Grid(2))
    assert (fine.outcome, fine.complete, fine.schedules_run) == ("finished", True, 1)
    found = _explore(first_come(1), compiler, simulator, sheet, grid=Grid(2))
    assert (found.outcome, found.complete, found.stopped_by) == ("race", False, "finding")


def _sums(
    strategy: Search | list[Schedule], compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> Exploration:
    """Rank 0 stores 256, then ranks 1 and 2 add -256 and 1 to it, rounding to bf16 each time."""
    inputs = [[{"x": torch.full((64, 64), value, dtype=BF16)} for value in (256, -256, 1)]]
    return simulator.explore(
        compiler.simulator(kernel(ADDITIONS)), launches=inputs, outputs=Y, sheet=sheet,
        strategy=strategy, schedules=30, grid=Grid(1),
    )  # fmt: skip


def _first_sums(found: Exploration) -> set[float]:
    return {float(outputs[0][0]["y"][0, 0]) for _, outputs in found.outputs}


def test_pct_finds_an_order_of_two_additions_that_the_eager_schedule_does_not(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    # (256 - 256) + 1 = 1, but 256 + 1 rounds to 256 in bf16, and then the sum is 0.
    eager = _sums([Schedule("eager")], compiler, simulator, sheet)
    pct = _sums("pct", compiler, simulator, sheet)
    assert (eager.outcome, pct.outcome, pct.schedules_run) == ("finished", "finished", 30)
    assert len(_first_sums(eager)) == 1
    assert _first_sums(pct) == {0.0, 1.0}
    for schedule, outputs in pct.outputs:
        for again in (_sums([schedule], compiler, simulator, sheet) for _ in range(2)):
            assert again.outputs[0][0] == schedule
            bits = again.outputs[0][1][0][0]["y"].view(torch.int16)
            assert torch.equal(bits, outputs[0][0]["y"].view(torch.int16))


@pytest.mark.parametrize("strategy", ["mixed", "pct", "exhaustive"])
def test_a_finding_ends_the_exploration_and_its_report_is_the_replays(
    strategy: Search, compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    found = _explore(
        TICKETS, compiler, simulator, sheet, world=3, rows=4, cols=4, strategy=strategy
    )
    assert (found.outcome, found.stopped_by, found.complete) == ("deadlock", "finding", False)
    assert found.schedules_run == 1
    assert found.last is not None
    for _ in range(2):
        again = simulator.functional(
            compiler.simulator(kernel(TICKETS)), launches=_inputs(3, 4, 4), outputs=Y, sheet=sheet,
            grid=Grid(1), schedule=found.last,
        )  # fmt: skip
        assert again.diagnosis == found.diagnosis


def test_a_crash_ends_one_schedule_and_not_the_exploration(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    crash = TICKETS.replace("signal(self, g.ready, 0, 0);", "volatile int* p = nullptr; *p = 1;")
    found = _explore(crash, compiler, simulator, sheet)
    assert (found.outcome, found.diagnosis["kind"]) == ("fault", "signal")
    assert "invalid memory access" in found.diagnosis["summary"]


def test_schedules_are_texts() -> None:
    for text in (
        "eager",
        "latest",
        "random:7",
        "pct:7:3:400",
        "exhaustive:first",
        "exhaustive:3=1,8=2",
    ):
        assert str(Schedule(text)) == text
    for text in (
        "",
        "random",
        "random:x",
        "pct:1:2",
        "exhaustive:",
        "eager\n",
        "exhaustive:1=",
        "x" * 10**6,
    ):
        with pytest.raises(ScheduleError, match="is no schedule"):
            Schedule(text)
    assert [Schedule.of_seed(n).text for n in range(3)] == ["eager", "latest", "random:2"]
    mixed = drawn("mixed", 6, 3)
    assert [s.strategy for s in mixed] == ["eager", "latest", "random", "pct", "random", "pct"]
    assert mixed == drawn("mixed", 6, 3) != drawn("mixed", 6, 4)
    with pytest.raises(ValueError, match="cannot be listed"):
        drawn("exhaustive", 1, 0)


def test_a_schedule_of_another_kernel_is_refused(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    found = simulator.functional(
        compiler.simulator(kernel(TICKETS)), launches=_inputs(2, 1, 1), outputs=Y, sheet=sheet,
        grid=Grid(1), schedule=Schedule("exhaustive:0=9"),
    )  # fmt: skip
    assert found.outcome == "fault"
    assert "does not belong to this kernel" in found.diagnosis["summary"]
