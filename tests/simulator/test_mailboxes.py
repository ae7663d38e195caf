"""Mailboxes: data that carries its own arrival, and reports about what never arrived."""

import pytest
import torch

from pk_runtime.compiler import Compiler
from pk_runtime.sheet import Sheet
from pk_runtime.simulator import Simulator, TensorSpec, TimingRun
from tests.simulator.running import BF16, body, kernel, run

# One-shot all-reduce in communicators of every block; {...} are the places where a defect goes.
ALL_REDUCE = """
  using S = slab<bf16, 8, 128, 1>;
  struct args {{
    layout<bf16> x, y; mailbox<S> box, spare;
    PK_FN int across() const {{ return y.tiles_across<S>(); }}
    PK_FN int tasks() const {{ return y.tiles_down<S>() * across(); }}
  }};
  struct comm_shared {{}};
  static void setup(host& h, args& g) {{
    h.input("x", g.x); h.output("y", g.y);
    h.mailbox("box", g.box, {slots});
  }}
  PK_ROLE communicator(group<1> self, const args& g, comm_shared& s) {{
    for (int t : self.tasks(g.tasks())) {{
      S v;
      slab_sum<bf16, 8, 128, 1> sum;
      load(self, v, g.x, {{t / g.across(), t % g.across()}});
      for (int i = 1; i < self.world(); ++i) {{
        int peer = (self.rank() + i) % self.world();
        {post}
      }}
      take_sum(self, sum, {box}, {slot}, v);
      {after}
      convert(self, v, sum);
      store(self, g.y, {{t / g.across(), t % g.across()}}, v);
    }}
  }}
"""
RIGHT = {"slots": "g.tasks()", "post": "post(self, g.box, peer, t, v);", "box": "g.box",
         "slot": "t", "after": ""}  # fmt: skip


def _source(**defect: str) -> str:
    return body(ALL_REDUCE.format(**{**RIGHT, **defect}))


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("shape", [(64, 128), (45, 200)])
def test_an_all_reduce_without_signals(
    shape: tuple[int, int], world: int, compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    program = compiler.simulator(kernel(_source()))
    x = [[torch.randn(shape).to(BF16) for _ in range(world)] for _ in range(4)]
    inputs = [[{"x": t} for t in launch] for launch in x]
    for seed in range(6):
        found = run(simulator, program, sheet, inputs, {"y": shape}, seed=seed)
        assert found.outcome == "finished", found.diagnosis
        for tensors, outputs in zip(x, found.outputs, strict=True):
            want = torch.zeros(shape)
            for tensor in tensors:
                want += tensor.float()
            assert all(torch.equal(rank["y"], want.to(BF16)) for rank in outputs)


def _outcome(
    compiler: Compiler,
    simulator: Simulator,
    sheet: Sheet,
    defect: dict[str, str],
    *,
    launches: int = 1,
) -> tuple[str, str]:
    """Outcome and summary on three ranks, the same under an eager and a late schedule."""
    program = compiler.simulator(kernel(_source(**defect)))
    inputs = [[{"x": torch.ones(16, 128, dtype=BF16)} for _ in range(3)]] * launches
    found = [
        run(simulator, program, sheet, inputs, {"y": (16, 128)}, seed=seed) for seed in (0, 1, 5)
    ]
    assert len({each.outcome for each in found}) == 1, [each.diagnosis for each in found]
    return found[0].outcome, found[0].diagnosis.get("summary", "")


POST = RIGHT["post"]
DEFECTS = {
    "nothing posted": (
        {"post": f"if (self.rank() != 2) {POST}"},
        "deadlock",
        ["communicator (launch 0) waits for mailbox 'box' slot", "from rank 2", "nothing else"],
    ),
    "one slot not posted": (
        {"post": f"if (self.rank() != 2 || peer != 1 || t != 1) {POST}"},
        "deadlock",
        ["rank 1 block 1 communicator (launch 0) waits for mailbox 'box' slot 1 from rank 2"],
    ),
    "another slot": (
        {"post": "post(self, g.box, peer, 1 - t, v);", "slot": "0"},
        "fault",
        ["takes mailbox 'box' slot 0 from rank", "second time in this launch"],
    ),
    "posted twice": (
        {"post": POST + POST},
        "fault",
        ["posts to mailbox 'box' slot", "second time in this launch: use another slot"],
    ),
    "posted to a rank that is not there": (
        {"post": "post(self, g.box, self.world(), t, v);"},
        "fault",
        ["post('box') names rank 3; ranks are 0 to 2"],
    ),
    "posted to a slot that is not there": (
        {"slots": "1"},
        "fault",
        ["post('box') names slot 1; the mailbox has slots 0 to 0"],
    ),
    "taken from a slot that is not there": (
        {"slot": "7"},
        "fault",
        ["take('box') names slot 7; the mailbox has slots 0 to 1"],
    ),
    "no slots": ({"slots": "0"}, "fault", ["mailbox 'box' needs at least one slot; got 0"]),
    "sizes that differ": (
        {"slots": "2 + h.rank()"},
        "fault",
        ["mailbox 'box' is declared with different sizes by two ranks"],
    ),
    "not declared": ({"box": "g.spare"}, "fault", ["is used that setup() did not declare"]),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_defects_are_named(
    name: str, compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    defect, outcome, words = DEFECTS[name]
    found, text = _outcome(compiler, simulator, sheet, defect)
    assert found == outcome, text
    for word in words:
        assert word in text


def test_what_nobody_takes_is_no_fault(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    extra = POST + "post(self, g.box, peer, g.tasks() + t, v);"
    defect = {"slots": "2 * g.tasks()", "post": extra}
    outcome, text = _outcome(compiler, simulator, sheet, defect, launches=4)
    assert outcome == "finished", text


def test_a_report_tells_what_else_lies_in_the_box(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    defect = {"slots": "4", "post": "post(self, g.box, peer, t + 2, v);"}
    outcome, text = _outcome(compiler, simulator, sheet, defect)
    assert outcome == "deadlock"
    assert "waits for mailbox 'box' slot" in text
    assert "has posted to slot 2, 3, which nobody has taken" in text


def test_the_record_of_a_wait_has_fields(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    program = compiler.simulator(kernel(_source(post=f"if (self.rank() != 1) {POST}")))
    inputs = [[{"x": torch.ones(8, 128, dtype=BF16)} for _ in range(2)]]
    found = run(simulator, program, sheet, inputs, {"y": (8, 128)})
    (wait,) = found.diagnosis["waits"]
    want = {"rank": 0, "block": 0, "role": "communicator", "launch": 0,
            "waits_for": "mailbox", "mailbox": "box", "slot": 0, "source": 1}  # fmt: skip
    assert {key: wait[key] for key in want} == want


def _predict(
    source: str, rows: int, compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> TimingRun:
    tensors = [TensorSpec(name, (rows, 128), BF16) for name in ("x", "y")]
    return simulator.timing(
        compiler.simulator(kernel(source)),
        inputs=tensors[:1],
        outputs=tensors[1:],
        world_size=4,
        sheet=sheet,
    )


# The same all-reduce through scratch memory and signals.
WITH_SIGNALS = """
  using S = slab<bf16, 8, 128, 1>;
  struct args {
    layout<bf16> x, y; parallel_layout<bf16> inbox; signals sent;
    PK_FN int tasks() const { return y.tiles_down<S>(); }
  };
  struct comm_shared {};
  static void setup(host& h, args& g) {
    h.input("x", g.x); h.output("y", g.y);
    h.scratch("inbox", g.inbox, h.world(), g.x.rows, g.x.cols);
    h.signals("sent", g.sent, g.tasks(), h.world());
  }
  PK_ROLE communicator(group<1> self, const args& g, comm_shared& s) {
    for (int t : self.tasks(g.tasks())) {
      S v;
      slab_sum<bf16, 8, 128, 1> sum;
      load(self, v, g.x, {t, 0});
      for (int r = 0; r < self.world(); ++r) store(self, g.inbox[r], {self.rank(), t, 0}, v);
      signal_all(self, g.sent, t);
      wait(self, g.sent, t, self.world());
      zero(sum);
      for (int r = 0; r < self.world(); ++r) {
        load(self, v, g.inbox[self.rank()], {r, t, 0});
        accumulate(self, sum, v);
      }
      convert(self, v, sum);
      store(self, g.y, {t, 0}, v);
    }
  }
"""


def test_a_mailbox_is_one_crossing_and_twice_the_bytes(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    rows = 32
    quick = _predict(_source(), rows, compiler, simulator, sheet)
    slow = _predict(body(WITH_SIGNALS), rows, compiler, simulator, sheet)
    assert (quick.outcome, slow.outcome) == ("finished", "finished")
    crossing = sheet.simulator.link_latency_us
    around = sheet.simulator.graph_launch_us + sheet.simulator.enter_us
    assert crossing < quick.time_us - around < slow.time_us - around - crossing
    for run_, factor in ((quick, 2), (slow, 1)):
        for rank in run_.diagnosis["ranks"]:
            assert rank["link_out_bytes"] == rank["link_in_bytes"] == factor * 3 * rows * 256
    assert quick.bottleneck is not None
    assert quick.bottleneck.exposed_us["mailboxes"] > crossing / 132  # averaged over all blocks


def test_a_deadlock_is_named_without_arithmetic(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    source = _source(post=f"if (self.rank() != 3) {POST}")
    found = _predict(source, 8, compiler, simulator, sheet)
    assert found.outcome == "deadlock"
    assert "waits for mailbox 'box' slot 0 from rank 3" in found.diagnosis["summary"]
