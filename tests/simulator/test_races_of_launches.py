"""Races with the caller, with later phases and with what orders nothing: each next to its twin."""

from typing import Any

import pytest
import torch

from pk_runtime.compiler import Compiler
from pk_runtime.sheet import Sheet
from pk_runtime.simulator import Simulator
from tests.simulator.running import BF16, body, kernel, run

LAUNCHES = 3


def _found(
    compiler: Compiler,
    simulator: Simulator,
    sheet: Sheet,
    source: str,
    *,
    world: int = 2,
    seeds: range = range(4),
) -> list[tuple[str, dict[str, Any]]]:
    """Outcome and report under each schedule, for x[64, 64] in and y[64, 64] out."""
    program = compiler.simulator(kernel(body(source)))
    inputs = [
        [{"x": torch.ones(64, 64, dtype=BF16)} for _ in range(world)] for _ in range(LAUNCHES)
    ]
    runs = [run(simulator, program, sheet, inputs, {"y": (64, 64)}, seed=seed) for seed in seeds]
    return [(found.outcome, found.diagnosis) for found in runs]


# Rank 1 copies rank 0's x. A launch waits for peers where x is bound as a parallel layout.
PULL = """
  using S = slab<bf16, 64, 64, 1>;
  struct args {{ layout<bf16> x, y; parallel_layout<bf16> all; signals turn; }};
  struct comm_shared {{}};
  static void setup(host& h, args& g) {{
    if ({everywhere} || h.rank() > 0) h.input("x", g.all);
    else h.input("x", g.x);
    h.output("y", g.y); h.signals("turn", g.turn, 1, 1);
  }}
  PK_ROLE communicator(group<1> self, const args& g, comm_shared& s) {{
    if (self.block() != 0) return;
    S v;
    if (self.rank() > 0) load(self, v, g.all[0], {{0, 0}});
    store(self, g.y, {{0, 0}}, v);
  }}
"""


def test_an_input_is_not_rewritten_while_a_peer_reads_it(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    for outcome, report in _found(compiler, simulator, sheet, PULL.format(everywhere="true")):
        assert outcome == "finished", report
    for outcome, report in _found(compiler, simulator, sheet, PULL.format(everywhere="false")):
        assert outcome == "race", report
        assert "the host of rank 0" in report["summary"]
        assert "'x' of rank 0" in report["summary"]
        assert {report["first"]["role"], report["second"]["role"]} == {"host", "communicator"}


# A slab goes to the neighbour by a plain store; a letter, or a signal, says that it is there.
LETTER = """
  using S = slab<bf16, 64, 64, 1>;
  using L = slab<bf16, 16, 64, 1>;
  struct args {{ layout<bf16> x, y; parallel_layout<bf16> inbox; mailbox<L> box; signals sent; }};
  struct comm_shared {{}};
  static void setup(host& h, args& g) {{
    h.input("x", g.x); h.output("y", g.y);
    h.scratch("inbox", g.inbox, 1, 64, 64); h.mailbox("box", g.box, 1);
    h.signals("sent", g.sent, 1, 1);
  }}
  PK_ROLE communicator(group<1> self, const args& g, comm_shared& s) {{
    if (self.block() != 0) return;
    int next = (self.rank() + 1) % self.world();
    int last = (self.rank() + self.world() - 1) % self.world();
    S v;
    L letter;
    load(self, v, g.x, {{0, 0}});
    load(self, letter, g.x, {{0, 0}});
    store(self, g.inbox[next], {{0, 0, 0}}, v);
    {say}
    {hear}
    load(self, v, g.inbox[self.rank()], {{0, 0, 0}});
    store(self, g.y, {{0, 0}}, v);
  }}
"""


def test_a_letter_says_nothing_of_other_memory(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    signal = {"say": "signal(self, g.sent, next, 0);", "hear": "wait(self, g.sent, 0, 1);"}
    letter = {
        "say": "post(self, g.box, next, 0, letter);",
        "hear": "take(self, letter, g.box, last, 0);",
    }
    for outcome, report in _found(compiler, simulator, sheet, LETTER.format(**signal)):
        assert outcome == "finished", report
    for outcome, report in _found(compiler, simulator, sheet, LETTER.format(**letter)):
        assert outcome == "race", report
        assert report["kind"] == "read_before_write"
        assert "'inbox' of rank" in report["summary"]


# Two phases of an exchange between all ranks, counted on one counter or each on its own.
PHASES = """
  using S = slab<bf16, 64, 64, 1>;
  struct args {{ layout<bf16> x, y; parallel_layout<bf16> inbox; signals sent; }};
  struct comm_shared {{}};
  static void setup(host& h, args& g) {{
    h.input("x", g.x); h.output("y", g.y);
    h.scratch("inbox", g.inbox, 2 * h.world(), 64, 64);
    h.signals("sent", g.sent, {slots}, {per_launch});
  }}
  PK_ROLE communicator(group<1> self, const args& g, comm_shared& s) {{
    if (self.block() != 0) return;
    S v;
    load(self, v, g.x, {{0, 0}});
    for (int phase = 0; phase < 2; ++phase) {{
      for (int i = 1; i < self.world(); ++i) {{
        int peer = (self.rank() + i) % self.world();
        store(self, g.inbox[peer], {{phase * self.world() + self.rank(), 0, 0}}, v);
        signal(self, g.sent, peer, {slot});
      }}
      wait(self, g.sent, {slot}, {count});
      for (int i = 1; i < self.world(); ++i) {{
        int peer = (self.rank() + i) % self.world();
        load(self, v, g.inbox[self.rank()], {{phase * self.world() + peer, 0, 0}});
      }}
    }}
    store(self, g.y, {{0, 0}}, v);
  }}
"""


def test_a_fast_rank_does_not_stand_in_for_a_slow_one(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    """A barrier that is used again at once: the second arrival of a fast rank counts as the first
    of a slow one."""
    own = {
        "slots": "2",
        "per_launch": "h.world() - 1",
        "slot": "phase",
        "count": "self.world() - 1",
    }
    one = {"slots": "1", "per_launch": "2 * (h.world() - 1)", "slot": "0",
           "count": "(phase + 1) * (self.world() - 1)"}  # fmt: skip
    seeds = range(12)
    for outcome, report in _found(
        compiler, simulator, sheet, PHASES.format(**own), world=3, seeds=seeds
    ):
        assert outcome == "finished", report
    found = _found(compiler, simulator, sheet, PHASES.format(**one), world=3, seeds=seeds)
    races = [report for outcome, report in found if outcome == "race"]
    assert races
    for report in races:
        assert "'inbox' of rank" in report["summary"]
        assert "which other signals can make up" in report["summary"]


ADDS = """
  using T = tile<bf16, 64, 64>;
  struct args {{ layout<bf16> x, y; parallel_layout<bf16> sum; signals zeroed, added; }};
  struct shared {{ copy_ring<T, 2> pipe; }};
  static void setup(host& h, args& g) {{
    h.input("x", g.x); h.output("y", g.y); h.scratch("sum", g.sum, 1, 64, 64);
    h.signals("zeroed", g.zeroed, 1, 1); h.signals("added", g.added, 1, h.world());
  }}
  PK_ROLE loader(issuer self, const args& g, shared& s) {{
    auto pipe = s.pipe.producer(self);
    if (self.block() != 0) return;
    pipe.load(pipe.acquire(), g.x, {{0, 0}}); pipe.commit();
    if (self.rank() > 0) return;
    wait(self, g.added, 0, {adders});
    pipe.load(pipe.acquire(), g.sum[0], {{0, 0, 0}}); pipe.commit();
  }}
  PK_ROLE storer(issuer self, const args& g, shared& s) {{
    auto pipe = s.pipe.consumer(self);
    if (self.block() != 0) return;
    T& t = pipe.wait();
    if (self.rank() == 0) store_async(self, g.sum[0], {{0, 0, 0}}, t);
    if (self.rank() == 0) signal_all(self, g.zeroed, 0);
    wait(self, g.zeroed, 0, 1);
    store_add_async(self, g.sum[0], {{0, 0, 0}}, t);
    signal(self, g.added, 0, 0);
    store_async(self, g.y, {{0, 0}}, t);
    pipe.release();
    if (self.rank() == 0) {{ pipe.wait(); pipe.release(); }}
  }}
"""


@pytest.mark.parametrize(
    ("adders", "expected"), [("self.world()", "finished"), ("self.world() - 1", "race")]
)
def test_adds_of_several_ranks_are_no_race_and_are_noted(
    adders: str, expected: str, compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    for outcome, report in _found(compiler, simulator, sheet, ADDS.format(adders=adders)):
        assert outcome == expected, report
        if expected == "finished":
            (note,) = report["notes"]
            assert "reduce-add to the same memory of 'sum' of rank 0 in no order" in note
