"""How setup() sees tensors: merged columns, planes, parts of columns, against torch slicing."""

from collections.abc import Callable

import pytest
import torch

from pk_runtime.compiler import Compiler
from pk_runtime.sheet import Sheet
from pk_runtime.simulator import FunctionalRun, Simulator, TensorSpec
from tests.simulator.running import BF16, body, kernel, run

# Tile by tile from x to y. {...}: the arguments and how they are bound, the number of planes that
# are copied, which tensor gives the shape of one, and where a tile comes from and goes to.
COPY = """
  using T = tile<bf16, 64, 64>;
  struct args {{
    {declared}
    PK_FN int across() const {{ return {like}.tiles_across<T>(); }}
    PK_FN int per_plane() const {{ return {like}.tiles_down<T>() * across(); }}
    PK_FN int tasks() const {{ return {planes} * per_plane(); }}
    PK_FN coord at(int t) const {{
      return {{t / per_plane(), t % per_plane() / across(), t % across()}};
    }}
  }};
  struct shared {{ copy_ring<T, 2> pipe; }};
  static void setup(host& h, args& g) {{ {bound} }}
  PK_ROLE loader(issuer self, const args& g, shared& s) {{
    auto pipe = s.pipe.producer(self);
    for (int t : self.tasks(g.tasks())) {{
      coord at = g.at(t);
      pipe.load(pipe.acquire(), {load});
      pipe.commit();
    }}
  }}
  PK_ROLE storer(issuer self, const args& g, shared& s) {{
    auto pipe = s.pipe.consumer(self);
    for (int t : self.tasks(g.tasks())) {{
      coord at = g.at(t);
      store_async(self, {store}, pipe.wait());
      pipe.release();
    }}
  }}
"""


def _copy(bound: str, **places: str) -> str:
    usual = {"declared": "layout<bf16> x, y;", "like": "x", "planes": "x.planes",
             "load": "g.x, at", "store": "g.y, at"}  # fmt: skip
    return body(COPY.format(**{**usual, **places}, bound=bound))


Shape = tuple[int, ...]
View = Callable[[torch.Tensor], torch.Tensor]
CASES: dict[str, tuple[str, Shape, View]] = {
    "rows of two dimensions": ("{.cols = 384}", (4, 6, 64), lambda x: x.reshape(1, 4, 384)),
    "planes are merged": ("{.cols = 64}", (3, 50, 64), lambda x: x.reshape(1, 150, 64)),
    "one long row": ("{.cols = 512}", (4096,), lambda x: x.reshape(1, 8, 512)),
    "planes": ("{.planes = 3}", (2, 48, 64), lambda x: x.reshape(3, 32, 64)),
    "columns, then planes": ("{4, 128}", (2, 48, 64), lambda x: x.reshape(4, 12, 128)),
    "a part": ("{.parts = 3, .part = 1}", (30, 192), lambda x: x[None, :, 64:128]),
    "a part of planes": ("{.parts = 2, .part = 1}", (3, 70, 48), lambda x: x[:, :, 24:]),
    "a part of merged columns": (
        "{.cols = 960, .parts = 4, .part = 2}",
        (5, 24, 40),
        lambda x: x.reshape(1, 5, 960)[:, :, 480:720],
    ),
    "padded rows as they are": ("{.cols = 10}", (2, 7, 10), lambda x: x.reshape(1, 14, 10)),
}


@pytest.mark.parametrize("name", CASES)
def test_an_input_is_seen_as_torch_would(
    name: str, compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    view, shape, expected = CASES[name]
    bound = f'h.input("x", g.x, {view}); h.output("y", g.y);'
    x = torch.randn(shape).to(BF16)
    want = expected(x)
    program = compiler.simulator(kernel(_copy(bound)))
    for seed in (0, 3):
        found = run(simulator, program, sheet, [[{"x": x}]], {"y": tuple(want.shape)}, seed=seed)
        assert found.outcome == "finished", found.diagnosis
        assert torch.equal(found.outputs[0][0]["y"], want)


REFUSED: dict[str, tuple[str, Shape, str]] = {
    "padding": ("{.cols = 20}", (8, 10), "padding between its rows, so that they cannot"),
    "no whole rows": ("{.cols = 100}", (8, 64), "512 elements, which are not whole rows of 100"),
    "rows too short": ("{.cols = 4}", (8, 64), "no rows of 4 columns: they would not be"),
    "planes": ("{.planes = 3}", (8, 64), "8 rows, which do not split into 3 equal planes"),
    "no equal parts": ("{.parts = 8}", (8, 60), "60 columns, which do not split into 8"),
    "parts too narrow": ("{.parts = 3}", (8, 60), "into 3 equal parts of a multiple of 16 bytes"),
    "no such part": ("{.parts = 3, .part = 3}", (8, 96), "no part 3 of 3"),
    "too many parts": ("{.parts = 9}", (8, 144), "parts are 1 to 8"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_seen_so_is_refused(
    name: str, compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    view, shape, words = REFUSED[name]
    program = compiler.simulator(kernel(_copy(f'h.input("x", g.x, {view}); h.output("y", g.y);')))
    found = run(simulator, program, sheet, [[{"x": torch.ones(shape, dtype=BF16)}]], {"y": (8, 8)})
    assert found.outcome == "fault"
    assert (
        "tensor 'x' " + words in found.diagnosis["summary"] or words in found.diagnosis["summary"]
    )


def _finished(found: FunctionalRun) -> list[dict[str, torch.Tensor]]:
    assert found.outcome == "finished", found.diagnosis
    return found.outputs[0]


def test_parts_of_peers_inputs_and_of_outputs(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    """An exchange of columns: rank r gets part r of everybody's x, side by side in y."""
    world, rows, cols = 4, 70, 96
    source = _copy(
        'h.input("x", g.x, {.parts = h.world(), .part = h.rank()});'
        "for (int p = 0; p < h.world(); ++p)"
        '  h.output("y", g.y[p], {.parts = h.world(), .part = p});',
        declared="parallel_layout<bf16> x; layout<bf16> y[max_ranks]; int world;",
        planes="4",
        load="g.x[at.plane], {at.row, at.col}",
        store="g.y[at.plane], {at.row, at.col}",
    )
    program = compiler.simulator(kernel(source))
    x = [torch.randn(rows, cols).to(BF16) for _ in range(world)]
    for seed in (1, 2):
        found = run(
            simulator, program, sheet, [[{"x": t} for t in x]], {"y": (rows, cols)}, seed=seed
        )
        for rank, outputs in enumerate(_finished(found)):
            want = torch.cat([t.chunk(world, 1)[rank] for t in x], 1)
            assert torch.equal(outputs["y"], want)


PARTS = {
    "declared": "parallel_layout<bf16> x; layout<bf16> y;",
    "like": "x",
    "planes": "3",
    "load": "g.x[at.plane], {at.row, at.col}",
}


def test_all_parts_of_an_own_input(compiler: Compiler, simulator: Simulator, sheet: Sheet) -> None:
    bound = 'h.input_parts("x", g.x, {.cols = 240, .parts = 3}); h.output("y", g.y);'
    program = compiler.simulator(kernel(_copy(bound, **PARTS)))
    x = [torch.randn(70, 3, 80).to(BF16) for _ in range(2)]
    found = run(simulator, program, sheet, [[{"x": t} for t in x]], {"y": (3, 70, 80)}, seed=4)
    for tensor, outputs in zip(x, _finished(found), strict=True):
        assert torch.equal(outputs["y"], tensor.transpose(0, 1))


def test_parts_of_an_own_input_need_no_barrier(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    def time_us(bound: str) -> float:
        declared = "parallel_layout<bf16> x, peers; layout<bf16> y;"
        source = _copy(bound + 'h.output("y", g.y);', **{**PARTS, "declared": declared})
        found = simulator.timing(
            compiler.simulator(kernel(source)),
            inputs=[TensorSpec("x", (70, 240), BF16)],
            outputs=[TensorSpec("y", (3, 70, 80), BF16)],
            world_size=3,
            sheet=sheet,
        )
        assert found.outcome == "finished", found.diagnosis
        return found.time_us

    parts = 'h.input_parts("x", g.x, {.parts = 3});'
    barriers = time_us(parts + 'h.input("x", g.peers);') - time_us(parts)  # at entry and at exit
    crossing = sheet.simulator.release_us + sheet.simulator.flag_latency_us
    assert crossing < barriers < 3 * crossing, "one at entry, one at exit"


def test_a_part_ends_at_its_own_edge(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    """Slabs and tiles that reach beyond a part neither read nor write its neighbour."""
    source = body("""
      using S = slab<bf16, 16, 64, 1>;
      struct args { layout<bf16> x, left, right; };
      struct shared {};
      static void setup(host& h, args& g) {
        h.input("x", g.x, {.parts = 2});
        h.output("y", g.left, {.parts = 2});
        h.output("y", g.right, {.parts = 2, .part = 1});
      }
      PK_ROLE consumer(group<1> self, const args& g, shared& s) {
        if (self.block() != 0) return;
        S v;
        load(self, v, g.x, {0, 0});  // 40 columns, then zeros
        store(self, g.right, {0, 0}, v);
        store(self, g.left, {0, 0}, v);
      }
    """)
    program = compiler.simulator(kernel(source))
    x = torch.randn(10, 80).to(BF16)
    for seed in range(4):
        found = run(simulator, program, sheet, [[{"x": x}]], {"y": (10, 80)}, seed=seed)
        assert torch.equal(_finished(found)[0]["y"], torch.cat([x[:, :40]] * 2, 1))
