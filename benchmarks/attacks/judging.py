"""One entry of the suite before the judge: what it got, against what it must get."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from benchmarks.attacks.suite import Entry
from pk_runtime.target import Target
from problems.errors import ProblemError
from problems.lint.controls import lint
from problems.lint.report import LintReport
from problems.loading import load_problem
from problems.registry import get
from sandbox import problem_host
from sandbox.isolation import choose
from sandbox.judge import Judge
from sandbox.problem_host import CustomProblem
from sandbox.rules.scan import scan

# Inputs and schedules are drawn from it: a suite that fails now and then would not be believed.
SEED = 20261121
# A problem file that never ends is stopped after this instead of minutes.
PROBLEM_WALL_S = 20.0

ADMITTED, REFUSED, GPU_ONLY = "admitted", "refused", "GPU only"


@dataclass(frozen=True)
class Outcome:
    """What became of an entry; `said` is the verdict's summary, `seconds` are of wall time."""

    entry: Entry
    status: str
    said: str
    seconds: float

    @property
    def judged(self) -> bool:
        """Whether there is a verdict: without a GPU some candidates are only scanned."""
        return self.status != GPU_ONLY

    @property
    def missing(self) -> tuple[str, ...]:
        """Words that the evidence should have and has not."""
        return tuple(words for words in self.entry.evidence if words not in self.said)

    @property
    def ok(self) -> bool:
        """Whether the verdict is the one that the entry must get, for the reason it must have."""
        return not self.judged or (self.status == self.entry.status and not self.missing)

    def to_json(self) -> dict[str, object]:
        """The outcome as JSON."""
        return {
            "name": self.entry.name, "kind": self.entry.kind, "sort": self.entry.sort,
            "entries": list(self.entry.entries), "wanted": self.entry.status,
            "got": self.status, "ok": self.ok, "judged": self.judged,
            "missing": list(self.missing), "said": self.said, "seconds": round(self.seconds, 2),
        }  # fmt: skip


def judge_at(cache: Path) -> Judge:
    """A judge with this machine's strongest isolation."""
    return Judge(cache=cache, executor=choose())


def examine(judge: Judge, entry: Entry, target: Target) -> Outcome:
    """Judges one entry on a target. Triton, which the judge does not run, is only scanned, and raw
    CUDA on `sim:` targets too."""
    started = time.monotonic()
    if entry.sort == "problem":
        status, said = _problem(judge, entry)
    elif entry.sort == "triton" or (entry.sort == "cuda" and target.backend == "sim"):
        status, said = _scanned(entry)
    else:
        status, said = _candidate(judge, entry, target)
    return Outcome(entry, status, said, time.monotonic() - started)


def examine_all(
    judge: Judge,
    entries: Sequence[Entry],
    target: Target,
    progress: Callable[[Outcome], None] = lambda outcome: None,
) -> Iterator[Outcome]:
    """Judges entries one after the other."""
    for entry in entries:
        outcome = examine(judge, entry, target)
        progress(outcome)
        yield outcome


def _candidate(judge: Judge, entry: Entry, target: Target) -> tuple[str, str]:
    problem = get(entry.problem)
    smallest = min(
        (shape for shape in problem.shapes if shape.kind == "bench"),
        key=lambda shape: problem.costs(shape.dims, target.world_size).hbm_bytes,
    )
    with _unscanned() if entry.unscanned else nullcontext():
        verdict = judge.evaluate(
            entry.candidate, problem, target,
            shapes=entry.shapes or (smallest.name,), seed=SEED, depth=entry.depth,
        )  # fmt: skip
    violations = verdict.evidence.get("violations", [])
    tokens = " ".join(f"{v['token']} {v['why']}" for v in violations)
    messages = " ".join(str(d["message"]) for d in verdict.evidence.get("diagnostics", []))
    kind = verdict.evidence.get("kind", "")
    return verdict.status, f"{verdict.summary} {kind} {tokens} {messages}".strip()


def _scanned(entry: Entry) -> tuple[str, str]:
    violations = scan(entry.candidate)
    if not violations:
        return GPU_ONLY, "nothing forbidden in its text; a GPU decides"
    return "rejected", " ".join(map(str, violations))


def _problem(judge: Judge, entry: Entry) -> tuple[str, str]:
    """Admits or refuses a problem file; those that attack the host run in the sandbox.

    The others only state something wrong, and are spared the start of a process each.
    """
    try:
        if "P4" in entry.entries:
            with _impatient():
                report = judge.host(CustomProblem(entry.source)).lint()
        else:
            report = _lint(entry.source)
    except ProblemError as error:
        return REFUSED, str(error)
    if report.ok:
        return ADMITTED, "every trivial candidate fails"
    return REFUSED, " ".join(f"{found.check}: {found.message}" for found in report.findings)


def _lint(source: str) -> LintReport:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.py"
        path.write_text(source, encoding="utf-8")
        return lint(load_problem(path), seeds=(1,))


@contextmanager
def _unscanned() -> Iterator[None]:
    with patch("sandbox.judge.scan", lambda candidate: ()):
        yield


@contextmanager
def _impatient() -> Iterator[None]:
    limits = dict.fromkeys(problem_host.WALL_S, PROBLEM_WALL_S)
    with patch.dict(problem_host.WALL_S, limits):
        yield
