"""Races: named under every schedule, eager included, with both accesses and what is missing.

Every defect stands next to the kernel without it.
"""

from typing import Any

import pytest
import torch

from pk_runtime.compiler import Compiler
from pk_runtime.sheet import Sheet
from pk_runtime.simulator import Simulator
from tests.simulator.running import BF16, body, kernel, run

SEEDS = (0, 1, 2, 3)
LAUNCHES = 3

# Every rank pushes x into its neighbour's inbox; the neighbour copies the inbox to y.
PUSH = """
  using T = tile<bf16, 64, 64>;
  struct args {{
    layout<bf16> x, y; parallel_layout<bf16> inbox; signals sent;
  }};
  struct shared {{ copy_ring<T, 2> pipe; }};
  static void setup(host& h, args& g) {{
    h.input("x", g.x); h.output("y", g.y);
    h.scratch("inbox", g.inbox, 2, 64, 64);
    h.signals("sent", g.sent, 2, {per_launch});
  }}
  PK_ROLE loader(issuer self, const args& g, shared& s) {{
    int next = (self.rank() + 1) % self.world();
    auto pipe = s.pipe.producer(self);
    if (self.block() != 0) return;
    T& t = pipe.acquire(); pipe.load(t, g.x, {{0, 0}}); pipe.commit();
    {loader_signals}
    {wait}
    T& u = pipe.acquire(); pipe.load(u, g.inbox[self.rank()], {{0, 0, 0}}); pipe.commit();
    {after}
  }}
  PK_ROLE storer(issuer self, const args& g, shared& s) {{
    int next = (self.rank() + 1) % self.world();
    auto pipe = s.pipe.consumer(self);
    if (self.block() != 0) return;
    store_async(self, g.inbox[next], {{0, 0, 0}}, pipe.wait());
    {storer_signals}
    pipe.release();
    store_async(self, g.y, {{0, 0}}, pipe.wait());
    pipe.release();
    {last}
  }}
"""
SIGNAL = "signal(self, g.sent, next, 0);"
RIGHT_PUSH = {"per_launch": "1", "loader_signals": "", "wait": "wait(self, g.sent, 0, 1);",
              "storer_signals": SIGNAL, "after": "", "last": ""}  # fmt: skip


def _push(**defect: str) -> str:
    return body(PUSH.format(**{**RIGHT_PUSH, **defect}))


def _found(
    compiler: Compiler,
    simulator: Simulator,
    sheet: Sheet,
    source: str,
    *,
    world: int = 2,
    seeds: tuple[int, ...] = SEEDS,
) -> list[tuple[str, dict[str, Any]]]:
    """Outcome and report under each schedule, for x[64, 64] in and y[64, 64] out."""
    program = compiler.simulator(kernel(source))
    inputs = [
        [{"x": torch.ones(64, 64, dtype=BF16)} for _ in range(world)] for _ in range(LAUNCHES)
    ]
    runs = [run(simulator, program, sheet, inputs, {"y": (64, 64)}, seed=seed) for seed in seeds]
    return [(found.outcome, found.diagnosis) for found in runs]


def _line_of(source: str, text: str) -> int:
    (number,) = [i for i, line in enumerate(source.splitlines(), 1) if text in line]
    return number


@pytest.mark.parametrize(
    "right",
    [
        {},
        {"per_launch": "2", "loader_signals": SIGNAL, "wait": "wait(self, g.sent, 0, 2);"},
    ],
    ids=["signal", "one signal of each role"],
)
def test_no_race_without_a_defect(
    right: dict[str, str], compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    for outcome, report in _found(compiler, simulator, sheet, _push(**right), world=4):
        assert outcome == "finished", report


# The defect, kind of race, words that the summary must hold.
PUSH_DEFECTS = {
    "no wait": (
        {"wait": ""},
        "read_before_write",
        ["loader", "loads tile {0, 0, 0} (64 x 64) of 'inbox' of rank", "storer", "stores",
         "signals 'sent' slot 0 of rank", "the loader has not waited for 'sent' before"],
    ),
    "signal by another role": (
        {"loader_signals": SIGNAL, "storer_signals": ""},
        "read_before_write",
        ["the loader of that block signals 'sent' slot 0 of rank",
         "that publishes only what its own role has stored"],
    ),
    "wait for less than all": (
        {"per_launch": "2", "loader_signals": SIGNAL},
        "read_before_write",
        ["signals 'sent' slot 0 of rank", "the loader has waited there for a count of 1",
         "which other signals can make up"],
    ),
    "wait for another slot": (
        {"per_launch": "1", "loader_signals": "signal(self, g.sent, next, 1);",
         "wait": "wait(self, g.sent, 1, 1);"},
        "read_before_write",
        ["signals 'sent' slot 0 of rank", "the loader has waited only for slot 1"],
    ),
    "signal to another rank": (
        {"storer_signals": "signal(self, g.sent, self.rank(), 0);"},
        "read_before_write",
        ["signals 'sent' slot 0 of rank", "a wait looks at the counters of its own rank"],
    ),
    "no signal": (
        {"storer_signals": "", "wait": ""},
        "read_before_write",
        ["publishes nothing after that: no signal, barrier or ring commit follows"],
    ),
    "rewritten while read": (
        {"last": "T& v = s.pipe.slots[0]; store_async(self, g.inbox[next], {0, 0, 0}, v);"},
        "write_after_read",
        ["storer", "stores tile {0, 0, 0} (64 x 64) of 'inbox'", "loader", "loads",
         "nothing orders the write after the read"],
    ),
    "written twice": (
        {"last": "T& v = s.pipe.slots[0]; store_async(self, g.inbox[self.rank()], {1, 0, 0}, v);"
         "store_async(self, g.inbox[next], {1, 0, 0}, v);"},
        "write_write",
        ["stores tile {1, 0, 0}", "nothing orders the two writes"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUSH_DEFECTS)
def test_races_between_ranks_are_named_under_every_schedule(
    name: str, compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    defect, kind, words = PUSH_DEFECTS[name]
    for outcome, report in _found(compiler, simulator, sheet, _push(**defect)):
        assert outcome == "race", report
        assert report["kind"] == kind, report
        for word in words:
            assert word in report["summary"]


# A communicator writes x to `mid` from registers and brings it back, to y.
THROUGH_MEMORY = """
  using S = slab<bf16, 64, 64, 1>;
  using T = tile<bf16, 64, 64>;
  struct args {{ layout<bf16> x, y; parallel_layout<bf16> mid; signals done; }};
  struct comm_shared {{ load_ring<T, 1, 1> pipe; }};
  static void setup(host& h, args& g) {{
    h.input("x", g.x); h.output("y", g.y);
    h.scratch("mid", g.mid, 1, 64, 64); h.signals("done", g.done, 1, 1);
  }}
  PK_ROLE communicator(group<1> self, const args& g, comm_shared& s) {{
    if (self.block() != 0) return;
    const layout<bf16>& mid = g.mid[self.rank()];
    S v;
    load(self, v, g.x, {{0, 0}});
    store(self, mid, {{0, 0, 0}}, v);
    {publish}
    {acquire}
    {read}
  }}
"""
BY_TMA = (
    "auto in = s.pipe.producer(self); auto out = s.pipe.consumer(self);"
    "in.load(in.acquire(), mid, {0, 0, 0}); in.commit();"
    "store_async(self, g.y, {0, 0}, out.wait()); out.release();"
)
BY_REGISTERS = "load(self, v, mid, {0, 0, 0}); store(self, g.y, {0, 0}, v);"
OWN_SIGNAL, OWN_WAIT = "signal(self, g.done, self.rank(), 0);", "wait(self, g.done, 0, 1);"


@pytest.mark.parametrize(
    ("publish", "acquire", "read", "kind"),
    [
        (OWN_SIGNAL, OWN_WAIT, BY_TMA, ""),
        (OWN_SIGNAL, OWN_WAIT, BY_REGISTERS, ""),
        (OWN_SIGNAL, "", BY_TMA, "proxy"),
        ("", "", BY_TMA, "proxy"),
    ],
    ids=["waited for", "registers", "signal without a wait", "nothing"],
)
def test_plain_stores_reach_asynchronous_loads_only_through_a_fence(
    publish: str,
    acquire: str,
    read: str,
    kind: str,
    compiler: Compiler,
    simulator: Simulator,
    sheet: Sheet,
) -> None:
    text = THROUGH_MEMORY.format(publish=publish, acquire=acquire, read=read)
    for outcome, report in _found(compiler, simulator, sheet, body(text), seeds=(0, 1, 3)):
        assert outcome == ("race" if kind else "finished"), report
        assert report.get("kind", "") == kind
        if kind:
            assert "loads tile {0, 0, 0} (64 x 64) of 'mid'" in report["summary"]
            assert "another proxy" in report["missing"]
            assert "wait() or barrier() by the communicator" in report["missing"]


# y = x * x^T by tensor cores, through shared memory; {...} are the places where a defect goes.
PRODUCT = """
  using A = tile<bf16, 64, 64>;
  using C = tile<bf16, 64, 64>;
  struct args {{ layout<bf16> x, y; }};
  struct shared {{ load_ring<A, 2, 1> in; C result; store_ring<C, 1, 1> out; }};
  static void setup(host& h, args& g) {{ h.input("x", g.x); h.output("y", g.y); }}
  PK_ROLE loader(issuer self, const args& g, shared& s) {{
    auto in = s.in.producer(self);
    if (self.block() != 0) return;
    for (int i = 0; i < 6; ++i) {{ in.load(in.acquire(), g.x, {{0, 0}}); in.commit(); }}
  }}
  PK_ROLE consumer(group<1> self, const args& g, shared& s) {{
    auto in = s.in.consumer(self);
    auto out = s.out.producer(self);
    if (self.block() != 0) return;
    reg_tile<float, 64, 64, 1> c;
    for (int i = 0; i < 6; ++i) {{
      A& x = in.wait();
      mma_abt_async(self, c, x, x);
      {before_release}
      in.release();
    }}
    mma_wait<0>(self, c);
    C& t = out.acquire(); store(self, t, c); {commit}
    {later}
  }}
  PK_ROLE storer(issuer self, const args& g, shared& s) {{
    auto out = s.out.consumer(self);
    if (self.block() != 0) return;
    store_async(self, g.y, {{0, 0}}, out.wait());
    out.release();
  }}
"""
RIGHT_PRODUCT = {"before_release": "mma_wait<0>(self, c);", "commit": "out.commit();", "later": ""}
RESULT = "store(self, s.result, c); store_async(self, g.y, {0, 0}, s.result);"

# The places, kind of race ("" for none), words of the summary.
SHARED_MEMORY = {
    "right": ({}, "", []),
    "released under the tensor cores": (
        {"before_release": ""},
        "write_after_read",
        ["loads into a 64 x 64 tile of its block's shared memory, slot 0 of ring #0", "consumer",
         "multiplies", "releases slot 0 of ring #0",
         "before an mma_wait has made sure that the tile was read"],
    ),
    "written after commit": (
        {"commit": "out.commit(); store(self, t, c);"},
        "write_after_read",
        ["consumer", "storer", "from"],
    ),
    "two results, waited for": (
        {"commit": f"out.commit(); {RESULT} drain_reads(self); {RESULT}"}, "write_write", ["'y'"],
    ),
    "result overwritten while it leaves": (
        {"commit": f"out.commit(); {RESULT} {RESULT}"},
        "write_after_read",
        ["writes a 64 x 64 tile of its block's shared memory",
         "release() or drain_reads() lets it be overwritten"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARED_MEMORY)
def test_races_in_shared_memory(
    name: str, compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    defect, kind, words = SHARED_MEMORY[name]
    source = body(PRODUCT.format(**{**RIGHT_PRODUCT, **defect}))
    for outcome, report in _found(compiler, simulator, sheet, source, seeds=(0, 1, 3)):
        assert outcome == ("race" if kind else "finished"), report
        assert report.get("kind", "") == kind, report
        for word in words:
            assert word in report["summary"]
