"""Communicators inside compute SMs: comm_sms = 0, beside the other roles of every block."""

import pytest
import torch

from pk_runtime.compiler import Compiler
from pk_runtime.sheet import Sheet
from pk_runtime.simulator import Simulator
from tests.simulator.running import BF16, body, kernel, run, summary

# y = x by loader and storer; z = x of the next rank by the communicators; row block b of `who` says
# how many blocks the communicator of block b counts, and b.
BESIDE = """
  {comm_sms}
  using T = tile<bf16, 64, 64>;
  struct args {{
    parallel_layout<bf16> x; layout<bf16> y, z, who;
    PK_FN int tasks() const {{ return y.tiles_down<T>(); }}
  }};
  struct shared {{ copy_ring<T, 2> pipe; }};
  struct comm_shared {{ mover<T, 2, 1> pipe; T mark; }};
  static void setup(host& h, args& g) {{
    h.input("x", g.x); h.output("y", g.y); h.output("z", g.z); h.output("who", g.who);
  }}
  PK_ROLE loader(issuer self, const args& g, shared& s) {{
    auto pipe = s.pipe.producer(self);
    for (int t : self.tasks(g.tasks())) {{
      pipe.load(pipe.acquire(), g.x[self.rank()], {{t, 0}});
      pipe.commit();
    }}
  }}
  PK_ROLE storer(issuer self, const args& g, shared& s) {{
    auto pipe = s.pipe.consumer(self);
    for (int t : self.tasks(g.tasks())) {{
      store_async(self, g.y, {{t, 0}}, pipe.wait());
      pipe.release();
    }}
  }}
  PK_ROLE communicator(group<1> self, const args& g, comm_shared& s) {{
    auto pipe = s.pipe.open(self);
    int next = (self.rank() + 1) % self.world();
    for (int t : self.tasks(g.tasks()))
      pipe.move(1, [&](auto& loads, T& u, int) {{ loads.load(u, g.x[next], {{t, 0}}); }},
                [&](T& u, int) {{ store_async(self, g.z, {{t, 0}}, u); }});
    reg_tile<float, 64, 64, 1> mark;
    zero(mark);
    float is = float(10 * self.blocks() + self.block());
    map(self, mark, [=](float, int, int) {{ return is; }});
    store(self, s.mark, mark);
    if (self.block() < g.who.tiles_down<T>()) store_async(self, g.who, {{self.block(), 0}}, s.mark);
  }}
"""


@pytest.mark.parametrize(
    ("comm_sms", "blocks"), [("", 5), ("static constexpr int comm_sms = 0;", 5),
                             ("static constexpr int comm_sms = 2;", 2)],
)  # fmt: skip
def test_it_runs_in_every_block(
    comm_sms: str, blocks: int, compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    program = compiler.simulator(kernel(body(BESIDE.format(comm_sms=comm_sms))))
    x = [torch.randn(600, 60).to(BF16) for _ in range(3)]
    outputs = {"y": (600, 60), "z": (600, 60), "who": (64 * blocks, 64)}
    for seed in range(4):
        found = run(simulator, program, sheet, [[{"x": t} for t in x]] * 2, outputs, seed=seed)
        assert found.outcome == "finished", found.diagnosis
        for ranks in found.outputs:
            for rank, result in enumerate(ranks):
                assert torch.equal(result["y"], x[rank])
                assert torch.equal(result["z"], x[(rank + 1) % 3])
                marks = result["who"][::64, 0].tolist()
                assert marks == [10 * blocks + b for b in range(blocks)]


MEMORY = """
  {comm_sms}
  using T = tile<bf16, 128, 128>;
  struct args {{ layout<bf16> x, y; }};
  struct shared {{ load_ring<T, {stages}> in; }};
  struct comm_shared {{ load_ring<T, 4> in; }};
  static void setup(host& h, args& g) {{ h.input("x", g.x); h.output("y", g.y); }}
  PK_ROLE loader(issuer self, const args& g, shared& s) {{}}
  PK_ROLE communicator(group<> self, const args& g, comm_shared& s) {{}}
"""


@pytest.mark.parametrize(
    ("comm_sms", "stages", "outcome", "words"),
    [
        ("", 3, "finished", ""),
        ("", 4, "fault", "shared and comm_shared together need 262272 bytes of shared memory"),
        ("static constexpr int comm_sms = 1;", 4, "finished", ""),
        ("static constexpr int comm_sms = 1;", 8, "fault", "shared needs 262272 bytes"),
    ],
)
def test_its_shared_memory_is_beside_that_of_the_others(
    comm_sms: str,
    stages: int,
    outcome: str,
    words: str,
    compiler: Compiler,
    simulator: Simulator,
    sheet: Sheet,
) -> None:
    source = body(MEMORY.format(comm_sms=comm_sms, stages=stages))
    found, text = summary(compiler, simulator, sheet, source)
    assert found == outcome, text
    assert words in text


WAITING = """
  struct args { layout<bf16> x, y; signals never; };
  struct shared {};
  struct comm_shared {};
  static void setup(host& h, args& g) {
    h.input("x", g.x); h.output("y", g.y); h.signals("never", g.never, 1, 1);
  }
  PK_ROLE consumer(group<1> self, const args& g, shared& s) {}
  PK_ROLE communicator(group<0> self, const args& g, comm_shared& s) {
    if (self.rank() == 1 && self.block() == 3) wait(self, g.never, 0, 1);
  }
"""


def test_reports_name_the_role_and_its_block(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    outcome, text = summary(compiler, simulator, sheet, body(WAITING))
    assert outcome == "deadlock"
    assert "rank 1 block 3 communicator (launch 0) waits for signal 'never'" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("PK_ROLE communicator", "PK_ROLE other"), "comm_sms > 0 needs a communicator role"),
        (("", ""), "group<0> is a communicator inside compute SMs"),
    ],
)
def test_sms_of_its_own_need_a_communicator_that_fits(
    change: tuple[str, str], words: str, compiler: Compiler
) -> None:
    own = "static constexpr int comm_sms = 4;\n"
    compiler.simulator(kernel(body(WAITING)))
    compiler.simulator(kernel(body(own + WAITING.replace("group<0>", "group<1>"))))
    with pytest.raises(Exception, match=words) as caught:
        compiler.simulator(kernel(body(own + WAITING.replace(*change))))
    assert type(caught.value).__name__ == "BuildError"
