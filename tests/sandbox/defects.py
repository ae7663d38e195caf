"""Shipped kernels with one defect each, as small edits of their source, and what the judge says."""

from dataclasses import dataclass

from pk_runtime.candidate import Candidate
from pk_runtime.kernels import shipped_kernel
from sandbox.verdict import Status


@dataclass(frozen=True)
class Defect:
    """`old` is replaced by `new` in a shipped kernel; `evidence` are words of the summary."""

    name: str
    kernel: str
    problem: str
    old: str
    new: str
    status: Status
    evidence: tuple[str, ...] = ()

    def candidate(self) -> Candidate:
        """The defective kernel; fails if the shipped one has changed too much."""
        return edited(self.kernel, self.old, self.new)


def edited(kernel: str, old: str, new: str) -> Candidate:
    """A shipped kernel with the first `old` replaced by `new`."""
    source = shipped_kernel(kernel).source
    assert old in source, f"{kernel} no longer contains {old!r}"
    return Candidate("pk", {"kernel.cu": source.replace(old, new, 1)})


_RS = ("gemm_reducescatter", "gemm_reducescatter")
_AG = ("allgather_gemm", "sp_ag_gemm_m_sharded")
_SIGNAL = "signal(self, g.ready, at.plane, at.row * g.cols() + at.col);"
_WAIT = "wait(self, g.ready, at.row * g.cols() + at.col, self.world() - 1);"
_STORE = "store_async(self, g.part[at.plane], {self.rank(), at.row, col}, x);"
_OWN_SIGNAL = "signal(self, g.ready, peer, g.slot(self.rank(), row, col / segment));"
_ADD = "accumulate(self, sum, in.wait());"
_LOADER = "auto in = s.in.producer(self);"
_SLOT = "g.part[tile % self.world()], {self.rank(), at.row, at.col}"
_PUSH = f"store_async(self, {_SLOT}, pipe.wait());"
_PUSHED = "pipe.release();\n      signal(self, g.ready, tile % self.world(), tile);"

DEFECTS = (
    Defect("dropped signal", *_RS, _SIGNAL, ";", "deadlock",
           ("loader", "waits for signal 'ready'", "expected 3, seen 0")),
    Defect("wrong expected count", *_RS, _WAIT, _WAIT.replace("world() - 1", "world()"), "deadlock",
           ("loader", "expected 4, seen 3", "no signal from")),
    Defect("swapped rank", *_RS, _STORE, _STORE.replace("at.plane", "self.rank()"), "race",
           ("of 'part' of rank", "nothing orders the two writes")),
    Defect("tile out of range", *_RS, "r, at.row, at.col);", "r, at.row + 1, at.col);", "crashed",
           ("part", "loader", "1")),
    Defect("syntax error", *_RS, "mm::accumulator c;", "mm::accumulator c", "build_failed",
           ("kernel.cu:", "expected")),
    Defect("endless loop", *_RS, _LOADER, _LOADER + " for (;;) {}", "timeout",
           ("loader", "endless loop")),
    Defect("signal before store", "allreduce_push", "allreduce", f"{_PUSH}\n      {_PUSHED}",
           f"signal(self, g.ready, tile % self.world(), tile); {_PUSH} pipe.release();",
           "race", ("signals 'ready'", "before that and publishes nothing after it")),
    Defect("wrong declared total", *_RS, "g.rows() * g.cols(), most(h.world() - 1, 1));",
           "g.rows() * g.cols(), h.world());", "race", ("declares 4 per launch",)),
    Defect("unknown tensor", *_RS, 'h.input("a"', 'h.input("q"', "crashed",
           ("no tensor 'q'", "it has a, b, c")),
    Defect("slot never released", *_RS, "out.release();", "", "crashed",
           ("storer", "without release()")),
    Defect("dropped signal", *_AG, _OWN_SIGNAL, "",
           "deadlock", ("loader", "waits for signal 'ready'")),
    Defect("signal that nobody expects", *_AG, _OWN_SIGNAL,
           f"{_OWN_SIGNAL} {_OWN_SIGNAL.replace('peer', 'self.rank()')}", "race",
           ("'ready'", "in launch 0")),
    Defect("wrong expected count", *_AG, "k / steps_per_segment), segment);",
           "k / steps_per_segment), segment + 1);", "deadlock", ("expected 9, seen 8",)),
    Defect("swapped rank", *_AG, "place{g.full[peer], coord{self.rank(),",
           "place{g.full[peer], coord{peer,", "race", ("'full'", "nothing orders the two writes")),
    Defect("tile out of range", *_AG, "place{g.a, coord{row, col}}, 1,",
           "place{g.a, coord{row, col + 9}}, 1,", "crashed", ("'a'",)),
    Defect("swapped rank", "allgather", "allgather", "% self.world()], {self.rank(),",
           "% self.world()], {(self.rank() + 1) % self.world(),", "wrong_output", ("y on",)),
    Defect("wrong reduction", "allreduce_one_shot", "allreduce", _ADD,
           f"if (r > 0) {_ADD} else in.wait();", "wrong_output", ("without rank 0",)),
    Defect("wrong reduction", "allreduce_push", "allreduce", "self, self.world(),\n",
           "self, self.world() - 1,\n", "wrong_output", ("without rank 3",)),
    Defect("swapped rank", "allreduce_two_shot", "allreduce",
           "g.y[(self.rank() + i) % self.world()]", "g.y[(i) % 2]", "wrong_output", ("rank",)),
    Defect("post to the wrong rank", "allreduce_ll", "allreduce",
           "post(self, g.box, (self.rank() + i) % self.world(), t, v);",
           "post(self, g.box, (self.rank() + i) % 2, t, v);", "crashed", ("'box'",)),
    Defect("swapped rank", "alltoall", "alltoall", "g.y[at.plane], {self.rank(),",
           "g.y[self.rank()], {at.plane,", "wrong_output", ("own input x",)),
    Defect("input overwritten", "alltoall", "alltoall", "store_async(self, g.y[at.plane], {",
           "store_async(self, g.x, {", "crashed", ("'x'", "which is an input")),
    Defect("dropped signal", "gemm_allreduce_inline", "gemm_allreduce",
           "signal(self, g.ready, k.owner, k.tile);", ";", "deadlock",
           ("loader", "waits for signal 'ready'")),
    Defect("dropped signal", "gemm_allreduce", "gemm_allreduce",
           "signal(self, g.ready, owner, p.row * g.chunks() + col);", ";", "deadlock",
           ("communicator", "waits for signal 'ready'")),
    Defect("wrong reduction", "gemm_allreduce", "gemm_allreduce", "self, self.world(), [&](int r)",
           "self, self.world() - 1, [&](int r)", "wrong_output", ("without rank 3",)),
)  # fmt: skip
