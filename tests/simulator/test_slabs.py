"""Slabs, registers that go to and from any rank's memory: against torch, and what goes wrong."""

import math
from pathlib import Path

import pytest
import torch

from pk_runtime.compiler import Compiler
from pk_runtime.sheet import Sheet
from pk_runtime.simulator import Simulator, TensorSpec
from tests.simulator.running import BF16, body, kernel, run, summary

WORDS = {BF16: "bf16", torch.float16: "fp16", torch.float32: "float"}

# y = the sum of x over ranks, pulled from peers. The last slabs in both directions are ragged.
SUM = """
  using S = slab<{dtype}, 16, 128>;
  struct args {{
    parallel_layout<{dtype}> x; layout<{dtype}> y;
    PK_FN int across() const {{ return y.tiles_across<S>(); }}
    PK_FN int per_plane() const {{ return y.tiles_down<S>() * across(); }}
  }};
  struct shared {{}};
  static void setup(host& h, args& g) {{ h.input("x", g.x); h.output("y", g.y); }}
  PK_ROLE consumer(group<> self, const args& g, shared& s) {{
    for (int t : self.tasks(g.y.planes * g.per_plane())) {{
      coord at(t / g.per_plane(), t % g.per_plane() / g.across(), t % g.across());
      S v[max_ranks];
      slab_sum<{dtype}, 16, 128> sum;
      zero(sum);
      for (int r = 0; r < self.world(); ++r) load(self, v[r], g.x[r], at);
      for (int r = 0; r < self.world(); ++r) accumulate(self, sum, v[r]);
      convert(self, v[0], sum);
      store(self, g.y, at, v[0]);
    }}
  }}
"""


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("dtype", WORDS)
def test_a_sum_in_rank_order_is_rounded_once(
    dtype: torch.dtype, world: int, compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    program = compiler.simulator(kernel(body(SUM.format(dtype=WORDS[dtype]))))
    for shape in ((70, 200), (2, 9, 136), (3, 5, 20)):
        x = [[torch.randn(shape).to(dtype) for _ in range(world)] for _ in range(2)]
        inputs = [[{"x": t} for t in launch] for launch in x]
        for seed in range(3):
            found = run(simulator, program, sheet, inputs, {"y": shape}, seed=seed, dtype=dtype)
            assert found.outcome == "finished", found.diagnosis
            for tensors, outputs in zip(x, found.outputs, strict=True):
                want = torch.zeros(shape)
                for tensor in tensors:
                    want += tensor.float()
                assert all(torch.equal(rank["y"], want.to(dtype)) for rank in outputs)


# Every rank pushes x into its plane of the next rank's scratch memory, which reads it when told.
PUSH = """
  using S = slab<bf16, 16, 128, 1>;
  struct args {{
    layout<bf16> x, y; parallel_layout<bf16> inbox; signals sent; barrier_state all;
    PK_FN int tasks() const {{ return x.tiles_down<S>(); }}
  }};
  struct shared {{}};
  static void setup(host& h, args& g) {{
    h.input("x", g.x); h.output("y", g.y);
    h.scratch("inbox", g.inbox, h.world(), g.x.rows, g.x.cols);
    h.signals("sent", g.sent, g.tasks(), 1);
    h.barrier("all", g.all);
  }}
  PK_ROLE consumer(group<1> self, const args& g, shared& s) {{
    int next = (self.rank() + 1) % self.world();
    int before = (self.rank() + self.world() - 1) % self.world();
    for (int t : self.tasks(g.tasks())) {{
      S v;
      load(self, v, g.x, {{t, 0}});
      {first}
      store(self, g.inbox[next], {{self.rank(), t, 0}}, v);
      {then}
    }}
    {last}
    for (int t : self.tasks(g.tasks())) {{
      {wait}
      S v;
      load(self, v, g.inbox[self.rank()], {{before, t, 0}});
      store(self, g.y, {{t, 0}}, v);
    }}
  }}
"""
SIGNAL, WAIT = "signal(self, g.sent, next, t);", "wait(self, g.sent, t, 1);"


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize(
    ("places", "right"),
    [({"then": SIGNAL, "wait": WAIT}, True), ({"last": "barrier(self, g.all);"}, True),
     ({"first": SIGNAL, "wait": WAIT}, False)],
    ids=["signal", "barrier", "signal too early"],
)  # fmt: skip
def test_a_store_is_published_by_what_follows_it(
    places: dict[str, str],
    right: bool,
    world: int,
    compiler: Compiler,
    simulator: Simulator,
    sheet: Sheet,
) -> None:
    empty = {"first": "", "then": "", "last": "", "wait": ""}
    program = compiler.simulator(kernel(body(PUSH.format(**{**empty, **places}))))
    x = [torch.randn(100, 100).to(BF16) for _ in range(world)]
    inputs = [[{"x": t} for t in x]] * 3
    for seed in range(6):
        found = run(simulator, program, sheet, inputs, {"y": (100, 100)}, seed=seed)
        assert found.outcome == ("finished" if right else "race"), found.diagnosis
        for ranks in found.outputs:
            for r in range(world):
                assert torch.equal(ranks[r]["y"], x[r - 1])


# The second load overwrites registers whose store may still be on its way.
REUSED = """
  using S = slab<bf16, 32, 64, 1>;
  struct args { layout<bf16> x, y; };
  struct shared {};
  static void setup(host& h, args& g) { h.input("x", g.x); h.output("y", g.y, 2); }
  PK_ROLE consumer(group<1> self, const args& g, shared& s) {
    if (self.block() != 0) return;
    S v;
    for (int i = 0; i < 2; ++i) {
      load(self, v, g.x, {i, 0});
      store(self, g.y, {i, 0, 0}, v);
    }
  }
"""


def test_registers_may_be_used_again_at_once(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    program = compiler.simulator(kernel(body(REUSED)))
    x = torch.randn(64, 64).to(BF16)
    for seed in range(3):
        found = run(simulator, program, sheet, [[{"x": x}]], {"y": (64, 64)}, seed=seed)
        assert found.outcome == "finished", found.diagnosis
        assert torch.equal(found.outputs[0][0]["y"], x)


ONE = """
  using S = slab<bf16, 16, 64, 1>;
  struct args {{ layout<bf16> x, y; }};
  struct shared {{}};
  static void setup(host& h, args& g) {{ h.input("x", g.x); h.output("y", g.y); }}
  PK_ROLE consumer(group<1> self, const args& g, shared& s) {{
    if (self.block() != 0) return;
    S v;
    {load}
    for (int i = 0; i < 4; ++i) store(self, {store}, v);
  }}
"""
RIGHT = {"load": "load(self, v, g.x, {0, 0});", "store": "g.y, {i, 0}"}


@pytest.mark.parametrize(
    ("defect", "outcome", "words"),
    [({}, "finished", ""),
     ({"load": "load(self, v, g.x, {4, 0});"}, "fault", "rank 0 at tile {plane 0, row 4"),
     ({"store": "g.y, {1, i, 0}"}, "fault", "store of 'y' of rank 0 at tile {plane 1,"),
     ({"store": "g.y, {i, 1}"}, "fault", "in tiles of 16 x 64 the tensor [1, 64, 64]"),
     ({"store": "g.x, {i, 0}"}, "fault", "stores to 'x' of rank 0, which is an input")],
)  # fmt: skip
def test_places_are_checked(
    defect: dict[str, str],
    outcome: str,
    words: str,
    compiler: Compiler,
    simulator: Simulator,
    sheet: Sheet,
) -> None:
    source = body(ONE.format(**{**RIGHT, **defect}))
    found, text = summary(compiler, simulator, sheet, source)
    assert found == outcome, text
    assert words in text


def test_registers_that_nothing_was_put_into_show(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    program = compiler.simulator(kernel(body(ONE.format(**{**RIGHT, "load": ""}))))
    found = run(
        simulator, program, sheet, [[{"x": torch.ones(64, 64, dtype=BF16)}]], {"y": (64, 64)}
    )
    assert found.outcome == "finished", found.diagnosis
    assert bool(found.outputs[0][0]["y"].isnan().all())


def test_a_slab_that_does_not_fit_its_group_is_refused(compiler: Compiler) -> None:
    source = body(ONE.format(**RIGHT)).replace("16, 64, 1>", "8, 64, 1>")
    with pytest.raises(Exception, match="every thread of its group the same number") as caught:
        compiler.simulator(kernel(source))
    assert type(caught.value).__name__ == "BuildError"


SOURCE = Path(__file__).parents[1] / "pk_runtime" / "sources" / "slabs.cu"


@pytest.mark.parametrize("world", [2, 4])
def test_the_file_that_is_compiled_for_gpus_too(
    world: int, compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    program = compiler.simulator(kernel(SOURCE.read_text(encoding="utf-8")))
    shape, parts = (50, 192), (world * 50, 192 // world)
    x = [torch.randn(shape).to(BF16) for _ in range(world)]
    total = torch.zeros(shape)
    for tensor in x:
        total += tensor.float()
    for seed in range(3):
        outputs = {"sum": shape, "copied": shape, "columns": parts}
        found = run(simulator, program, sheet, [[{"x": t} for t in x]] * 3, outputs, seed=seed)
        assert found.outcome == "finished", found.diagnosis
        for ranks in found.outputs:
            for rank, result in enumerate(ranks):
                assert torch.equal(result["sum"], total.to(BF16))
                assert torch.equal(result["copied"], x[rank])
                columns = torch.cat([t.chunk(world, 1)[rank] for t in x])
                assert torch.equal(result["columns"], columns)


def test_bytes_are_counted(compiler: Compiler, simulator: Simulator, sheet: Sheet) -> None:
    """Slabs that share a box of the L2 model bring it in once; what peers have crosses once."""
    program = compiler.simulator(kernel(body(SUM.format(dtype="bf16"))))
    shape, world = (1024, 2048), 4
    tensors = [TensorSpec(name, shape, BF16) for name in ("x", "y")]
    found = simulator.timing(
        program, inputs=tensors[:1], outputs=tensors[1:], world_size=world, sheet=sheet
    )
    assert found.outcome == "finished", found.diagnosis
    size = 2 * math.prod(shape)
    for rank in found.diagnosis["ranks"]:
        assert rank["link_in_bytes"] == (world - 1) * size
        assert rank["hbm_bytes"] == 2 * size  # x from memory once for all, y to memory
        assert rank["l2_bytes"] == (world + 1) * size
    floor = (world - 1) * size / sheet.simulator.link_in_bytes_per_us
    assert floor < found.time_us < 3 * floor
