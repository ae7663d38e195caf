"""What the simulator says of kernels that are wrong: each fault next to a twin that runs."""

import pytest

from pk_runtime.compiler import Compiler
from pk_runtime.sheet import Sheet
from pk_runtime.simulator import Simulator
from tests.simulator.running import body, summary

# x is copied to y of the same rank by block 0; {...} are the places where a defect goes.
COPY = """
  using T = tile<bf16, 64, 64>;
  struct args {{ layout<bf16> x, y; signals ready; }};
  struct shared {{ copy_ring<T, 2> pipe; }};
  static void setup(host& h, args& g) {{
    h.input("{x}", g.x); h.output("y", g.y); h.signals("ready", g.ready, 2, {per_launch});
    {setup}
  }}
  PK_ROLE loader(issuer self, const args& g, shared& s) {{
    auto pipe = s.pipe.producer(self);
    if (self.block() != 0) return;
    {before_load}
    for (int i = 0; i < {loads}; ++i) {{
      T& t = pipe.acquire(); pipe.load(t, g.x, {{0, {column}}}); pipe.commit();
    }}
  }}
  PK_ROLE storer(issuer self, const args& g, shared& s) {{
    auto pipe = s.pipe.consumer(self);
    if (self.block() != 0) return;
    T& t = pipe.wait();
    store_async(self, {destination}, {{0, 0}}, t);
    {release}
    signal(self, g.ready, {peer}, {slot});
    wait(self, g.ready, 0, {count});
    {after}
  }}
"""
RIGHT = {
    "x": "x", "per_launch": "1", "setup": "", "before_load": "", "loads": "1", "column": "0",
    "destination": "g.y", "peer": "(self.rank() + 1) % self.world()", "slot": "0", "count": "1",
    "release": "pipe.release();", "after": "",
}  # fmt: skip


def _copy(**defect: str) -> str:
    return body(COPY.format(**{**RIGHT, **defect}))


def test_the_kernel_without_a_defect_runs(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    for seed in range(4):
        assert summary(compiler, simulator, sheet, _copy(), launches=3, seed=seed)[0] == "finished"


DEFECTS = {
    "dropped signal": (
        {"peer": "0"},
        "deadlock",
        ["rank 1", "storer", "waits for signal 'ready' slot 0: expected 1, seen 0",
         "no signal from rank 0, nor from itself"],
    ),
    "wrong count": (
        {"count": "3"},
        "deadlock",
        ["'ready' slot 0: expected 3, seen 1", "no signal from rank"],
    ),
    "wrong peer": ({"peer": "self.world()"}, "fault", ["signal('ready') names rank 2", "0 to 1"]),
    "wrong slot": ({"slot": "5"}, "fault", ["signal('ready') names slot 5", "slots 0 to 1"]),
    "tile out of range": (
        {"column": "7"},
        "fault",
        ["load of 'x'", "tile {plane 0, row 0, col 7}", "cols 0..0", "loader"],
    ),
    "store to an input": ({"destination": "g.x"}, "fault", ["stores to 'x'", "is an input"]),
    "unknown tensor": ({"x": "weights"}, "fault", ["no tensor 'weights'", "it has x, y"]),
    "refused shape": (
        {"setup": 'h.require(g.x.cols % 128 == 0, "N must be a multiple of 128");'},
        "fault",
        ["refuses these shapes: N must be a multiple of 128"],
    ),
    "too many loads": (
        {"loads": "4"},
        "deadlock",
        ["loader", "waits for a free slot of ring #0", "the role that empties it has finished"],
    ),
    "too few loads": (
        {"loads": "0"},
        "deadlock",
        ["storer", "waits for data of ring #0", "the role that fills it has finished"],
    ),
    "slot never released": (
        {"release": ""},
        "fault",
        ["ring #0 of rank", "(launch 0)", "of 1 slots used, 1 were waited for and never released"],
    ),
    "slot never waited for": (
        {"loads": "2"},
        "fault",
        ["of 2 slots used, 1 were filled and never waited for"],
    ),
    "acquire twice": (
        {"before_load": "pipe.acquire(); pipe.acquire();"},
        "fault",
        ["ring #0", "acquire() again before commit()"],
    ),
    "commit without acquire": ({"before_load": "pipe.commit();"}, "fault", ["commit() without"]),
    "release twice": ({"after": "pipe.release();"}, "fault", ["release() of a slot"]),
    "endless loop": (
        {"after": "for (volatile int i = 0; i >= 0;) {}"},
        "timeout",
        ["storer", "without reaching an operation"],
    ),
    "bad pointer": (
        {"after": "volatile int* p = nullptr; *p = 1;"},
        "fault",
        ["invalid memory access", "storer"],
    ),
    "division by zero": (
        {"after": "volatile int n = 9, z = 0; n = n / z;"},
        "fault",
        ["division by zero"],
    ),
    "deep recursion": (
        {"after": "struct r { static int f(volatile int* n) { int m = *n + 1; volatile int v = m;"
         " return f(&v) + v; } }; volatile int n = 0; n = r::f(&n);"},
        "fault",
        ["stack overflow"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_defects_are_named(
    name: str, compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    defect, outcome, words = DEFECTS[name]
    wall = 1.0 if outcome == "timeout" else 5.0
    found, text = summary(compiler, simulator, sheet, _copy(**defect), wall_s=wall)
    assert found == outcome, text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("declared", "launches", "outcome", "words"),
    [
        ("2", 1, "dirty", "got 1 signals in launch 0 and setup() declares 2 per launch"),
        ("2", 3, "deadlock", "in launch 0 this counter got 1 signals and setup() declares 2"),
        ("1", 3, "finished", ""),
    ],
)
def test_declared_totals_are_held_to(
    declared: str,
    launches: int,
    outcome: str,
    words: str,
    compiler: Compiler,
    simulator: Simulator,
    sheet: Sheet,
) -> None:
    source = _copy(per_launch=declared)
    found, text = summary(compiler, simulator, sheet, source, launches=launches)
    assert found == outcome, text
    assert words in text
