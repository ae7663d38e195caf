"""The judge on real GPUs: what is right is timed, what is wrong is named, the next one is fine.

The cheating and the honest candidates that only GPUs can judge are those of the attack suite.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.attacks.judging import examine
from benchmarks.attacks.suite import Entry, entries
from pk_runtime.candidate import Candidate, Language
from pk_runtime.compiler import Compiler
from pk_runtime.kernels import shipped
from pk_runtime.target import parse_target
from problems.registry import get
from sandbox.gpu import device, judging
from sandbox.gpu.machine import unavailable
from sandbox.isolation import choose
from sandbox.judge import Judge
from sandbox.verdict import Status, Timing, Verdict
from tests.gpu import children
from tests.gpu.kernels import CACHE, EXAMPLES, sheet_name

TARGET = parse_target(f"cuda:{sheet_name()}")
BOXES = (Path(__file__).parent / "sources" / "boxes.cu").read_text(encoding="utf-8")
SHAPES = {"gemm_reducescatter": "m2048n2880k2880", "alltoall": "m1024n1024"}
SUITE = [entry for entry in entries() if entry.for_a_gpu]


@dataclass(frozen=True)
class Defect:
    """`old` is replaced by `new` in a kernel that is right; `evidence` are words of the summary."""

    name: str
    old: str
    new: str
    statuses: tuple[Status, ...]
    evidence: str = ""
    raw: bool = False

    @property
    def problem(self) -> str:
        """What the kernel computes but for the defect."""
        return EXAMPLES[1].slug if self.raw else "alltoall"

    def candidate(self) -> Candidate:
        """The defective kernel."""
        source = EXAMPLES[1].candidate.source if self.raw else BOXES
        assert self.old in source, f"{self.name}: {self.old!r} is gone"
        language: Language = "cuda" if self.raw else "pk"
        return Candidate(language, {"kernel.cu": source.replace(self.old, self.new, 1)})


_SIGNAL = "signal(self, g.ready, to.plane, g.slot(self.rank(), to));"
_FROM = "coord from = g.place(t);"
DEFECTS = (
    Defect("dropped signal", _SIGNAL, ";", ("deadlock",),
           "waits for signal 'ready' slot"),
    Defect("wrong count", "from), 1)", "from), 2)", ("deadlock",), "expected 2, seen 1"),
    Defect("wrong peer", "g.box[to.plane], {self.rank(),", "g.box[self.rank()], {to.plane,",
           ("wrong_output",), "y on"),
    Defect("endless loop", _FROM, f"{_FROM} for (;;) wait(self, g.ready, 0, 0);",
           ("deadlock", "timeout")),
    Defect("tile out of range", "pipe.load(x, g.x, g.place(t));", "pipe.load(x, g.x, {0, 99, 0});",
           ("crashed",), "is out of range"),
    Defect("unknown tensor", 'h.input("x"', 'h.input("q"', ("crashed",), "'q'"),
    Defect("illegal address", "g.y[peer] + ", "g.y[peer] + (1ll << 46) + ", ("crashed",),
           "ILLEGAL_ADDRESS", raw=True),
)  # fmt: skip


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    """One judge for all tests: its workers stay warm. Everything is built at once before."""
    reason = unavailable(TARGET)
    if reason is not None:
        pytest.skip(f"{TARGET}: {reason}")
    cache = CACHE / "judge"
    compiler = Compiler(cache / "build")
    right = [_boxes(), *(shipped(slug)[0] for slug in SHAPES), device.source()]
    kernels = [*right, *(defect.candidate() for defect in DEFECTS), *(e.candidate for e in SUITE)]
    with ThreadPoolExecutor(16) as threads:
        for building in [threads.submit(compiler.library, kernel) for kernel in kernels]:
            building.result()
    with Judge(cache=cache, executor=choose()) as made:
        yield made


@pytest.fixture
def no_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the simulator's stage, so that the GPUs have to find what is wrong."""
    monkeypatch.setattr(judging.GpuJudging, "_simulated", lambda *_: None)


def _boxes() -> Candidate:
    return Candidate("pk", {"kernel.cu": BOXES})


def _quick(
    judge: Judge, candidate: Candidate, problem: str, incumbent: Candidate | None = None
) -> Verdict:
    shapes = [SHAPES.get(problem) or next(s.name for s in get(problem).shapes if s.kind == "bench")]
    return judge.evaluate(
        candidate, get(problem), TARGET,
        shapes=shapes, depth="quick", seed=3, incumbent=incumbent,
    )  # fmt: skip


def _timed(verdict: Verdict) -> Timing:
    assert verdict.status == "correct", verdict.summary
    (timing,) = verdict.timings
    return timing


@pytest.mark.parametrize("problem", SHAPES)
def test_a_shipped_kernel_is_correct_and_timed(problem: str, judge: Judge) -> None:
    verdict = judge.evaluate(shipped(problem)[0], get(problem), TARGET, shapes=[SHAPES[problem]])
    assert verdict.status == "correct", verdict.summary
    assert verdict.isolation["isolated"] is True
    (timing,) = verdict.timings
    assert timing.kind == "measured"
    assert timing.roofline_us < timing.candidate_us
    assert "in a CUDA graph" in timing.detail["baseline"]
    assert {"candidate", "graph", "eager"} <= set(timing.detail["throughput"])
    assert {"graph", "eager"} <= set(timing.detail["latency"])
    assert verdict.versions["gpus"].startswith(f"{TARGET.world_size}x NVIDIA H200")
    assert {entry["world_size"] for entry in verdict.evidence["checks"]} == {2, TARGET.world_size}


@pytest.mark.usefixtures("no_simulator")
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda d: d.name.replace(" ", "-"))
def test_a_defect_is_named_and_the_next_one_is_fine(defect: Defect, judge: Judge) -> None:
    verdict = _quick(judge, defect.candidate(), defect.problem)
    assert verdict.status in defect.statuses, verdict.summary
    assert defect.evidence in verdict.summary
    assert not verdict.timings
    if verdict.status in ("deadlock", "crashed", "timeout"):
        assert verdict.evidence["gpus"] == "checked after it ended: healthy"
    if verdict.status == "deadlock":
        assert {"rank", "block", "role", "signal"} <= set(verdict.evidence["waits"][0])
    if verdict.status == "wrong_output":
        assert verdict.evidence["comparison"]["findings"]
    after = _quick(judge, _boxes(), "alltoall")
    assert after.status == "correct", after.summary


def test_the_simulator_finds_it_before_a_gpu_runs_it(judge: Judge) -> None:
    verdict = _quick(judge, DEFECTS[0].candidate(), "alltoall")
    assert verdict.status == "deadlock"
    assert verdict.evidence["found_by"] == "simulator"


@pytest.mark.usefixtures("no_simulator")
def test_an_incumbent_is_timed_by_turns(judge: Judge) -> None:
    timing = _timed(_quick(judge, _boxes(), "alltoall", shipped("alltoall")[0]))
    beside = timing.detail["incumbent"]
    assert beside["count"] == timing.detail["throughput"]["candidate"]["count"]
    assert beside["ratio"] == pytest.approx(beside["median_us"] / timing.candidate_us, rel=1e-3)
    low, high = beside["ratio_interval"]
    assert 0 < low <= beside["ratio"] <= high


@pytest.mark.usefixtures("no_simulator")
@pytest.mark.parametrize(
    ("defect", "words"), [(DEFECTS[2], "y on"), (DEFECTS[0], "its ranks ended")],
    ids=lambda value: value.name.replace(" ", "-") if isinstance(value, Defect) else "",
)  # fmt: skip
def test_an_incumbent_that_fails_is_left_out(defect: Defect, words: str, judge: Judge) -> None:
    timing = _timed(_quick(judge, _boxes(), "alltoall", defect.candidate()))
    assert words in timing.detail["incumbent"]["left_out"]
    assert "incumbent" not in _timed(_quick(judge, _boxes(), "alltoall")).detail


@pytest.mark.usefixtures("no_simulator")
def test_bytes_over_nvlink_are_counted_or_it_is_said_why_not(judge: Judge) -> None:
    nvlink = _timed(_quick(judge, _boxes(), "alltoall")).detail["nvlink"]
    if not nvlink["counted"]:
        assert nvlink["why"]
        pytest.skip(f"nobody counts them here: {nvlink['why']}")
    assert nvlink["candidate"] > 0.95 * nvlink["needed"]
    assert nvlink["candidate"] < 3 * nvlink["needed"], "not its bytes alone"


@pytest.mark.parametrize("entry", SUITE, ids=lambda e: f"{e.kind}-{e.name}".replace(" ", "-"))
def test_the_attack_suite_gets_its_verdicts(entry: Entry, judge: Judge) -> None:
    outcome = examine(judge, entry, TARGET)
    assert outcome.status == entry.status, outcome.said
    assert not outcome.missing, outcome.said


def test_nothing_stays_in_l2_out_of_turn() -> None:
    child = children.run("forgotten_l2", {}, deadline_s=20.0)
    assert not child.trouble, child.stderr
    (found,) = child.of("l2")
    assert found["before"] > 0 or found["refused"], "there was nothing to forget"
    assert (found["after"], found["code"]) == (0, 0)
