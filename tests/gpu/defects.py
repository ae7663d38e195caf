"""Small kernels with one defect each, and what must come of them on real GPUs.

Both sources pass x to the next rank. The edits are those of an author's mistakes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pk_runtime.candidate import Candidate, Language

SOURCES = Path(__file__).parent / "sources"
Outcome = Literal["right", "wrong", "report", "stopped"]

_LANGUAGES: dict[str, Language] = {"ring": "pk", "raw_ring": "cuda"}


@dataclass(frozen=True)
class Defect:
    """`old` is replaced by `new` in a source; `evidence` is a pattern of what is said of it."""

    name: str
    kernel: str
    old: str
    new: str
    outcome: Outcome
    evidence: str = ""

    def candidate(self) -> Candidate:
        """The defective kernel."""
        return source(self.kernel, self.old, self.new)

    def __str__(self) -> str:
        return f"{self.kernel}: {self.name}".replace(" ", "_")


def source(kernel: str, old: str = "", new: str = "") -> Candidate:
    """One of the sources, with the first `old` replaced by `new`."""
    text = (SOURCES / f"{kernel}.cu").read_text(encoding="utf-8")
    assert old in text, f"{kernel}.cu no longer contains {old!r}"
    return Candidate(_LANGUAGES[kernel], {"kernel.cu": text.replace(old, new, 1)})


_SIGNAL = "signal(self, g.ready, next, 0);"
_WAIT = "wait(self, g.ready, 0, 1);"
_LAST = "store_async(self, g.y, {0, 0}, pipe.wait());"  # behind it, nobody waits for anybody
_RAW_SIGNAL = "raw::signal_release(self, g.ready, next, 0);"
_RAW_WAIT = "raw::wait_at_least(self, g.ready, 0, epoch + 1);"
_PUSH = "g.y[next][row"

DEFECTS = (
    Defect("dropped signal", "ring", _SIGNAL, "", "report",
           r"rank \d block 0 loader .*waits for signal 'ready' slot 0: expected 1, seen 0"),
    Defect("wrong count", "ring", _WAIT, _WAIT.replace("0, 1", "0, 2"), "report",
           r"loader .*waits for signal 'ready' slot 0: expected 2, seen 1"),
    Defect("wrong peer", "ring", "g.box[next]", "g.box[self.rank()]", "wrong"),
    Defect("signal to the wrong peer", "ring", _SIGNAL, _SIGNAL.replace("next", "0"), "report",
           r"rank [1-3] block 0 loader .*waits for signal 'ready' slot 0: expected 1, seen 0"),
    Defect("endless loop", "ring", _LAST, f"{_LAST} for (;;) wait(self, g.ready, 0, 0);", "stopped",
           r"still running after"),
    Defect("tile out of range", "ring", "pipe.load(x, g.x, {0, 0});",
           "pipe.load(x, g.x, {3, 0});", "report", r"loader .*'x' at .* is out of range"),
    Defect("dropped signal", "raw_ring", _RAW_SIGNAL, "", "report",
           r"rank \d block 0 kernel .*waits for signal 'ready' slot 0: expected 1, seen 0"),
    Defect("wrong count", "raw_ring", _RAW_WAIT, _RAW_WAIT.replace("epoch + 1", "epoch + 2"),
           "report", r"waits for signal 'ready' slot 0: expected 2, seen 1"),
    Defect("wrong slot", "raw_ring", _RAW_WAIT, _RAW_WAIT.replace("0, epoch", "5, epoch"),
           "report", r"'ready' slot 5 of rank \d is out of range"),
    Defect("wrong peer", "raw_ring", _PUSH, "g.y[self.rank()][row", "wrong"),
    Defect("endless loop", "raw_ring", _RAW_WAIT,
           "while (self.epoch() == epoch) { }", "stopped", r"still running after"),
    Defect("illegal address", "raw_ring", _PUSH, "(g.y[next] + (1ll << 46))[row", "report",
           r"failed without a record: .*illegal memory access"),
)  # fmt: skip
