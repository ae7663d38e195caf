"""Tile operations against torch: each kernel here is one that no shipped kernel contains."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pk_runtime.compiler import Compiler
from pk_runtime.sheet import Sheet
from pk_runtime.simulator import Simulator, SimulatorError, TensorSpec
from tests.simulator.running import BF16, body, kernel, run

LOCAL = """
  using T = tile<{dtype}, 128, 128>;
  struct args {{
    layout<{dtype}> x, y;
    PK_FN int tasks() const {{ return x.tiles_down<T>(); }}
  }};
  struct shared {{ load_ring<T, 1> in; store_ring<T, 1> out; }};
  static void setup(host& h, args& g) {{ h.input("x", g.x); h.output("y", g.y); }}
  PK_ROLE loader(issuer self, const args& g, shared& s) {{
    auto in = s.in.producer(self);
    for (int t : self.tasks(g.tasks())) {{
      T& x = in.acquire();
      in.load(x, g.x, {{t, 0}});
      in.commit();
    }}
  }}
  PK_ROLE consumer(group<> self, const args& g, shared& s) {{
    auto in = s.in.consumer(self);
    auto out = s.out.producer(self);
    reg_tile<float, 128, 128> v, u;
    reg_rows<float, 128> rows;
    for ([[maybe_unused]] int t : self.tasks(g.tasks())) {{
      load(self, v, in.wait());
      in.release();
      {compute}
      store(self, out.acquire(), v);
      out.commit();
    }}
  }}
  PK_ROLE storer(issuer self, const args& g, shared& s) {{
    auto out = s.out.consumer(self);
    for (int t : self.tasks(g.tasks())) {{
      store_async(self, g.y, {{t, 0}}, out.wait());
      out.release();
    }}
  }}
"""

SOFTMAX = """
      row_reduce(self, rows, v, -1e30f, [](float a, float b) { return fmaxf(a, b); });
      map_rows(self, v, rows, [](float a, float m) { return expf(a - m); });
      row_reduce(self, rows, v, 0.0f, [](float a, float b) { return a + b; });
      map_rows(self, v, rows, [](float a, float sum) { return a / sum; });
"""
RMS_NORM = """
      map(self, v, [](float a, int, int) { return a; });
      zero(u);
      zip(self, u, v, [](float, float a) { return a * a; });
      row_reduce(self, rows, u, 0.0f, [](float a, float b) { return a + b; });
      map_rows(self, v, rows, [](float a, float sum) { return a * rsqrtf(sum / 128 + 1e-6f); });
"""
CAUSAL = "map(self, v, [](float a, int row, int col) { return col <= row ? a : 0.0f; });"

Reference = Callable[[torch.Tensor], torch.Tensor]
CASES: dict[str, tuple[str, Reference]] = {
    "softmax": (SOFTMAX, lambda x: torch.softmax(x, -1)),
    "rms_norm": (RMS_NORM, lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)),
    "causal": (CAUSAL, lambda x: x.reshape(-1, 128, 128).tril().reshape(x.shape)),
}


@pytest.mark.parametrize(
    ("dtype", "word"), [(BF16, "bf16"), (torch.float16, "fp16"), (torch.float32, "float")]
)
@pytest.mark.parametrize("name", CASES)
def test_against_torch(
    name: str,
    dtype: torch.dtype,
    word: str,
    compiler: Compiler,
    simulator: Simulator,
    sheet: Sheet,
) -> None:
    compute, expected = CASES[name]
    program = compiler.simulator(kernel(body(LOCAL.format(compute=compute, dtype=word))))
    x = torch.randn(256, 128, generator=torch.Generator().manual_seed(3)).to(dtype)
    found = run(simulator, program, sheet, [[{"x": x}]], {"y": (256, 128)}, seed=2, dtype=dtype)
    assert found.outcome == "finished", found.diagnosis
    tolerance = {BF16: 2**-7, torch.float16: 2**-9, torch.float32: 1e-5}[dtype]
    want = expected(x.float())
    torch.testing.assert_close(
        found.outputs[0][0]["y"].float(), want, rtol=tolerance, atol=tolerance
    )


PRODUCT_WITH_TRANSPOSE = """
  using A = tile<bf16, 128, 64>;
  using B = tile<bf16, 64, 64>;
  struct stage { A a; B b; };
  struct args { layout<bf16> a, b, y; };
  struct shared { load_ring<stage, 2> in; store_ring<A, 1> out; };
  static void setup(host& h, args& g) { h.input("a", g.a); h.input("b", g.b); h.output("y", g.y); }
  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto in = s.in.producer(self);
    if (self.block() == 0)
      for (int k = 0; k < g.a.tiles_across<A>(); ++k) {
        stage& x = in.acquire();
        in.load(x.a, g.a, {0, k});
        in.load(x.b, g.b, {0, k});
        in.commit();
      }
  }
  PK_ROLE consumer(group<> self, const args& g, shared& s) {
    auto in = s.in.consumer(self);
    auto out = s.out.producer(self);
    if (self.block() != 0) return;
    reg_tile<float, 128, 64> c;
    zero(c);
    for (int k = 0; k < g.a.tiles_across<A>(); ++k) {
      stage& x = in.wait();
      mma_abt_async(self, c, x.a, x.b);
      mma_wait<0>(self, c);
      in.release();
    }
    store(self, out.acquire(), c);
    out.commit();
  }
  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto out = s.out.consumer(self);
    if (self.block() == 0) { store_async(self, g.y, {0, 0}, out.wait()); out.release(); }
  }
"""


def test_product_with_transposed_operand(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    program = compiler.simulator(kernel(body(PRODUCT_WITH_TRANSPOSE)))
    a, b = torch.randn(100, 96).to(BF16), torch.randn(50, 96).to(BF16)
    found = run(simulator, program, sheet, [[{"a": a, "b": b}]], {"y": (100, 50)}, seed=3)
    assert found.outcome == "finished", found.diagnosis
    want = a.double() @ b.double().T
    torch.testing.assert_close(found.outputs[0][0]["y"].double(), want, rtol=2**-7, atol=2**-6)


ADD_TO_A_PEER = """
  using T = tile<bf16, 64, 64>;
  struct args { layout<bf16> x, y; parallel_layout<bf16> sum; barrier_state all; };
  struct shared { copy_ring<T, 2> pipe; };
  static void setup(host& h, args& g) {
    h.input("x", g.x); h.output("y", g.y);
    h.scratch("sum", g.sum, 1, 64, 64); h.barrier("all", g.all);
  }
  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.producer(self);
    if (self.block() == 0) { T& t = pipe.acquire(); pipe.load(t, g.x, {0, 0}); pipe.commit(); }
    barrier(self, g.all);  // of the loaders; the stores are the storers'
    if (self.block() != 0) return;
    T& t = pipe.acquire();
    pipe.load(t, g.sum[self.rank()], {0, 0});
    pipe.commit();
  }
  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.consumer(self);
    if (self.block() != 0) return;
    store_async(self, g.sum[self.rank()], {0, 0}, pipe.wait());
    pipe.release();
    store_async(self, g.y, {0, 0}, pipe.wait());
    pipe.release();
  }
"""


def test_a_barrier_does_not_cover_the_stores_of_another_role(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    """The loaders' barrier says nothing of what the storers sent."""
    program = compiler.simulator(kernel(body(ADD_TO_A_PEER)))
    x = torch.ones(64, 64, dtype=BF16)
    for seed in range(8):
        found = run(simulator, program, sheet, [[{"x": x}, {"x": x}]], {"y": (64, 64)}, seed=seed)
        assert found.outcome == "race", found.diagnosis
        text = found.diagnosis["summary"]
        assert "'sum' of rank" in text
        assert "enters barrier 'all'" in text
        assert "publishes only what its own role has stored" in text


ROWS_ADDED = """
  using T = tile<bf16, 64, 64>;
  struct args { layout<bf16> x; parallel_layout<bf16> y; signals zeroed, added; };
  struct shared { copy_ring<T, 2> pipe; };
  static void setup(host& h, args& g) {
    h.input("x", g.x); h.output("y", g.y);
    h.signals("zeroed", g.zeroed, 1, 1);
  }
  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.producer(self);
    if (self.block() == 0) { T& t = pipe.acquire(); pipe.load(t, g.x, {0, 0}); pipe.commit(); }
  }
  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.consumer(self);
    if (self.block() != 0) return;
    T& t = pipe.wait();
    int next = (self.rank() + 1) % self.world();
    if (self.rank() == 0) {
      store_async(self, g.y[1], {0, 0}, t);
      signal(self, g.zeroed, 1, 0);
    } else {
      wait(self, g.zeroed, 0, 1);
      store_add_async(self, g.y[1], {0, 0}, t);
      store_async(self, g.y[next], {0, 0}, t);
    }
    pipe.release();
  }
"""


def test_adding_into_a_peer(compiler: Compiler, simulator: Simulator, sheet: Sheet) -> None:
    program = compiler.simulator(kernel(body(ROWS_ADDED)))
    x = [torch.randn(64, 64).to(BF16) for _ in range(2)]
    for seed in range(4):
        found = run(
            simulator, program, sheet, [[{"x": x[0]}, {"x": x[1]}]], {"y": (64, 64)}, seed=seed
        )
        assert found.outcome == "finished", found.diagnosis
        assert torch.equal(found.outputs[0][1]["y"], x[0] + x[1])
        assert torch.equal(found.outputs[0][0]["y"], x[1])


def test_specs_reject_what_the_simulator_does_not_have(simulator: Simulator, sheet: Sheet) -> None:
    with pytest.raises(SimulatorError, match="complex64"):
        simulator.timing(
            Path("/bin/true"),
            inputs=[TensorSpec("x", (4,), torch.complex64)],
            outputs=[],
            world_size=1,
            sheet=sheet,
        )
