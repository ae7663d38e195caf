"""The judge: scans, builds, checks and times one candidate, and says what it found.

The candidate is compiled and run by the executor, in its sandbox; everything that decides (seeds,
reference, golden, comparison, verdict) stays in this process. Whatever fails on this side becomes
`infra_error` and is never blamed on the candidate.
"""

import dataclasses
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pk_runtime.candidate import Candidate, CandidateError, resolved_knobs, validate
from pk_runtime.compiler import Compiler
from pk_runtime.execution import ExecutionError, Executor
from pk_runtime.simulator import Simulator
from pk_runtime.target import Target
from problems.description import Description
from problems.errors import ProblemError, UnknownShape
from problems.hosting import InProcessHost, ProblemHost
from sandbox.gpu.judging import GpuJudging
from sandbox.gpu.machine import TargetNotAvailable as TargetNotAvailable
from sandbox.isolation import Capabilities
from sandbox.labels import labels
from sandbox.problem_host import CustomProblem, ProblemSource, open_host
from sandbox.rules.scan import scan
from sandbox.stages import Progress, StageFailed
from sandbox.stages.bench import Bench
from sandbox.stages.build import build
from sandbox.stages.check import Check, derive
from sandbox.stages.plan import Replay, Schedules, plan
from sandbox.verdict import Depth, Stage, Status, Timing, Verdict
from sandbox.versions import deciding, of_this_machine

_SHOWN_VIOLATIONS = 20


class Judge:
    """Judges candidates one after the other; any number of judges may share a cache.

    `cache` holds build results and, per process, one folder for running programs. The executor
    runs everything that is not trusted; a `sandbox.isolation` executor also says what it enforces.
    On `cuda:` targets it keeps one worker per GPU running between candidates: close it, or use it
    as a context manager.
    """

    def __init__(self, *, cache: Path, executor: Executor) -> None:
        self._executor = executor
        self._workspace = cache.absolute() / "runs" / str(os.getpid())
        _remove_abandoned(self._workspace.parent)
        self._compiler = Compiler(cache.absolute() / "build", executor)
        self._simulator = Simulator(executor, self._workspace)
        self._gpus = GpuJudging(executor, self._compiler, self._simulator, self._workspace)

    def __enter__(self) -> "Judge":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers of GPUs; without any there is nothing to end."""
        self._gpus.close()

    def host(self, problem: ProblemSource) -> ProblemHost:
        """Where the problem's code runs; also for describing and linting a custom problem."""
        return open_host(problem, self._executor, self._workspace)

    def evaluate(
        self,
        candidate: Candidate,
        problem: ProblemSource,
        target: Target,
        *,
        shapes: Sequence[str] | None = None,
        seed: int | None = None,
        depth: Depth = "full",
        progress: Progress | None = None,
        trace: Path | None = None,
        schedules: Schedules | None = None,
        replay: Replay | None = None,
        incumbent: Candidate | None = None,
    ) -> Verdict:
        """The verdict on a candidate. `shapes` are those to time, by default every bench shape.

        `seed` repeats an earlier verdict; by default it is drawn and told only in the verdict.
        `progress(stage, detail)` is called before each step; what it raises ends the judgement.
        `trace` has the timelines of the timed shapes written there, on `sim:` targets.
        `schedules` is how many schedules are drawn per shape, or "exhaustive"; `replay` makes just
        one run of an earlier verdict with the same `seed`, as its evidence names it, and ends with
        stage "check". Both are for `sim:` targets. `incumbent` is the best kernel so far: on GPUs
        it is timed by turns with the candidate, and each timing says how they compare; simulated
        times of two runs compare as they are.

        Raises TargetNotAvailable, UnknownShape, ValueError for a replay without a seed, and
        ProblemError if a custom problem's file is at fault: mistakes of the caller, not verdicts.
        """
        if target.backend != "sim":
            self._must_run_on_gpus(problem, target)
        if replay is not None and seed is None:
            raise ValueError("a replay needs the seed of its verdict: inputs are drawn from it")
        report = _Guarded(progress)
        seed = secrets.randbits(63) if seed is None else seed
        draft = _Draft(candidate, target, depth, seed, trace, (), schedules, replay, incumbent)
        try:
            host = self.host(problem)
            description = host.describe(target.world_size)
            names = _shapes_to_time(description, shapes)
            if depth == "full" or draft.replay is not None:
                host = host.with_hidden(derive(seed, "hidden"), target.world_size)
            if draft.replay is not None:
                host.describe(target.world_size).shape(draft.replay.shape)
            draft = dataclasses.replace(draft, shapes=names)
        except ExecutionError as error:
            return self._verdict(draft, problem, None, "infra_error", "scan", _infra(error), ())
        try:
            evidence, timings = self._stages(draft, host, description, names, report)
        except StageFailed as failed:
            return self._verdict(
                draft, problem, description, failed.status, failed.stage, failed.evidence, ()
            )
        except Exception as error:
            if error is report.raised:
                raise
            stage = report.stage
            return self._verdict(draft, problem, description, "infra_error", stage, _infra(error))
        # One run that is repeated times nothing: what is right there has not passed the judge.
        stage = "done" if replay is None else "check"
        return self._verdict(draft, problem, description, "correct", stage, evidence, timings)

    def _stages(
        self,
        draft: "_Draft",
        host: ProblemHost,
        description: Description,
        shapes: Sequence[str],
        report: "_Guarded",
    ) -> tuple[dict[str, Any], tuple[Timing, ...]]:
        report("scan", {})
        _scan(draft.candidate)
        if draft.target.backend != "sim":
            return self._gpus.stages(
                draft.candidate, draft.target, host, shapes, draft.depth, draft.seed, report,
                draft.incumbent,
            )  # fmt: skip
        report("build", {})
        program = build(self._compiler, draft.candidate)
        target = draft.target
        check = Check(program, self._simulator, host, target.sheet, draft.seed, report)
        if draft.replay is not None:
            return check.replay(draft.replay), ()
        known = host.describe(target.world_size).shapes
        small_first = [shape.name for shape in known if shape.kind == "check"]
        todo = plan(draft.depth, small_first, target.world_size, draft.schedules)
        evidence = check.run(todo)
        compared = {
            entry["shape"]: entry["demand"]
            for entry in evidence["checks"]
            if entry["world_size"] == target.world_size
        }
        bench = Bench(
            program, draft.candidate, self._simulator, target, report, compared, draft.trace
        )
        return evidence, bench.run(description, shapes)

    def _verdict(
        self,
        draft: "_Draft",
        problem: ProblemSource,
        description: Description | None,
        status: Status,
        stage: Stage,
        evidence: Mapping[str, Any],
        timings: tuple[Timing, ...] = (),
    ) -> Verdict:
        if description is not None:
            name = description.slug
        else:
            name = "custom" if isinstance(problem, CustomProblem) else problem.slug
        return Verdict(
            status=status,
            stage=stage,
            problem=name,
            target=str(draft.target),
            language=draft.candidate.language,
            candidate=draft.candidate.digest(),
            depth=draft.depth,
            seed=draft.seed,
            evidence=dict(evidence),
            timings=timings,
            knobs=_knobs(draft.candidate),
            isolation=self._isolation(),
            versions=self._versions(problem, draft.target),
            source=draft.candidate.source_digest(),
            shapes=draft.shapes,
            labels=labels(draft.candidate),
        )

    def _must_run_on_gpus(self, problem: ProblemSource, target: Target) -> None:
        if not isinstance(open_host(problem, self._executor, self._workspace), InProcessHost):
            raise TargetNotAvailable(
                f"{target}: a problem from a file is not trusted, and the reference of a GPU "
                f"target runs beside the judge. Use sim:{target.sheet.name} for it."
            )
        self._gpus.require(target)

    def _isolation(self) -> dict[str, Any]:
        capabilities = getattr(self._executor, "capabilities", None)
        if capabilities is None:
            return Capabilities(backend=self._executor.name, isolated=False).to_dict()
        found: Capabilities = capabilities()
        return found.to_dict()

    def _versions(self, problem: ProblemSource, target: Target) -> dict[str, str]:
        versions = {**deciding(problem, target), **of_this_machine(self._compiler)}
        return versions if target.backend == "sim" else versions | self._gpus.versions()


@dataclass(frozen=True)
class _Draft:
    """What is known of a verdict before the first stage."""

    candidate: Candidate
    target: Target
    depth: Depth
    seed: int
    trace: Path | None
    shapes: tuple[str, ...] = ()
    schedules: Schedules | None = None
    replay: Replay | None = None
    incumbent: Candidate | None = None


class _Guarded:
    """The caller's progress function; remembers the stage, and what the function raised."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self.raised: Exception | None = None
        self.stage: Stage = "scan"

    def __call__(self, stage: str, detail: dict[str, Any]) -> None:
        self.stage = stage  # type: ignore[assignment]
        if self._progress is None:
            return
        try:
            self._progress(stage, detail)
        except Exception as error:
            self.raised = error
            raise


def _scan(candidate: Candidate) -> None:
    try:
        validate(candidate)
    except CandidateError:
        return  # the build stage says it, as a diagnostic
    violations = scan(candidate)
    if violations:
        first = violations[0]
        more = f" ({len(violations) - 1} more)" if len(violations) > 1 else ""
        summary = (
            f"The kernel uses what a kernel may not. {first.file} line {first.line}, "
            f"{first.token!r}: {first.why}. {first.instead}.{more}"
        )
        shown = [violation.to_json() for violation in violations[:_SHOWN_VIOLATIONS]]
        raise StageFailed("scan", "rejected", {"summary": summary, "violations": shown})


def _shapes_to_time(description: Description, asked: Sequence[str] | None) -> tuple[str, ...]:
    """The names asked for, each of which must exist; every bench shape if none are."""
    if asked:
        return tuple(dict.fromkeys(description.shape(name).name for name in asked))
    names = tuple(shape.name for shape in description.shapes if shape.kind == "bench")
    if not names:
        known = [shape.name for shape in description.shapes]
        raise UnknownShape(description.slug, "bench", known)
    return names


def _knobs(candidate: Candidate) -> dict[str, int]:
    try:
        return resolved_knobs(candidate)
    except CandidateError:
        return dict(candidate.knobs)


def _infra(error: Exception) -> dict[str, Any]:
    what = "the problem's code failed" if isinstance(error, ProblemError) else "the judge failed"
    return {
        "summary": f"No verdict on the candidate: {what}: {error}",
        "fault": type(error).__name__,
    }


def _remove_abandoned(folder: Path) -> None:
    """Removes what judges that were killed left behind."""
    for entry in folder.glob("*") if folder.is_dir() else ():
        if entry.name.isdecimal() and not Path("/proc", entry.name).exists():
            shutil.rmtree(entry, ignore_errors=True)
