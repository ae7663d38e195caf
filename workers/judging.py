"""The parts of a job as they really are: the policies of `agent`, the judge of `sandbox`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from agent.llm.protocol import LlmSettings
from agent.loop import Policy
from agent.policies import create_policy
from agent.spec import JobSpec
from pk_runtime.interface import Interface, InterfaceError, Sample
from pk_runtime.target import Target, TargetError, parse_target
from problems.description import Description
from problems.errors import ProblemError, UnknownProblem
from problems.hosting import ProblemHost
from problems.registry import get
from sandbox.isolation import IsolationUnavailable, choose
from sandbox.judge import Judge, TargetNotAvailable
from sandbox.problem_host import CustomProblem, ProblemSource
from sandbox.verdict import Verdict
from store import Settings, Store
from store.models import Job
from workers.parts import JobCannotRunError, Parts, Progress, Question

# A second world size tells what of a shape depends on the number of ranks.
_OTHER_WORLD = {2: 4}


class RealParts:
    """`workers.parts.Parts` of one job."""

    def __init__(
        self, judge: Judge, problem: ProblemSource, target: Target, llm: LlmSettings
    ) -> None:
        self._judge = judge
        self._problem = problem
        self._target = target
        self._llm = llm
        self._host: ProblemHost = judge.host(problem)

    def policy(self, spec: JobSpec) -> Policy:
        """The policy that the job's policy string names. Raises SpecError."""
        return create_policy(spec, problem=self._description(), llm=self._llm)

    def judge(self, question: Question, progress: Progress) -> Verdict:
        """Judge a candidate in the sandbox."""
        try:
            return self._judge.evaluate(
                question.candidate,
                self._problem,
                self._target,
                shapes=question.shapes,
                seed=question.seed,
                depth=question.depth,
                progress=progress,
                incumbent=question.incumbent,
            )
        except TargetNotAvailable as error:
            raise JobCannotRunError("target_not_available", str(error)) from error
        except ProblemError as error:
            raise JobCannotRunError("problem_failed", str(error)) from error

    def interface(self) -> Mapping[str, Any] | None:
        """The formulas that fit the problem's shapes at two world sizes; None if none do."""
        worlds = {self._target.world_size, _OTHER_WORLD.get(self._target.world_size, 2)}
        samples = [
            _sample(self._host.describe(world), name)
            for world in worlds
            for name in (shape.name for shape in self._host.describe(world).shapes)
        ]
        try:
            return Interface.infer(samples).to_json()
        except InterfaceError:
            return None

    def _description(self) -> Description:
        try:
            return self._host.describe(self._target.world_size)
        except ProblemError as error:
            raise JobCannotRunError("problem_failed", str(error)) from error


def _sample(description: Description, name: str) -> Sample:
    shape = description.shape(name)
    sides = (shape.inputs, shape.outputs)
    inputs, outputs = ({n: (spec.shape, spec.dtype) for n, spec in side.items()} for side in sides)
    return Sample(shape.dims, description.world_size, inputs, outputs)


@contextmanager
def open_parts(settings: Settings, store: Store, job: Job) -> Iterator[Parts]:
    """The parts of a job on this machine. Raises JobCannotRunError if it cannot run here."""
    try:
        target = parse_target(job.target)
        executor = choose(
            allow_none=settings.allow_no_isolation,
            choice=settings.isolation,
            docker_host=settings.docker_host,
        )
    except TargetError as error:
        raise JobCannotRunError("unknown_target", str(error)) from error
    except IsolationUnavailable as error:
        raise JobCannotRunError("isolation_unavailable", str(error)) from error
    with Judge(cache=settings.build_cache, executor=executor) as judge:
        yield RealParts(judge, _problem(store, job), target, _llm_settings(settings))


def _problem(store: Store, job: Job) -> ProblemSource:
    """The problem's code: the catalogue's, or the file that a user added."""
    if job.problem_id is None:
        try:
            return get(job.problem)
        except UnknownProblem as error:
            raise JobCannotRunError("unknown_problem", str(error)) from error
    with store.database.read() as tx:
        added = tx.problems.get(job.problem_id)
    return CustomProblem(store.artifacts.get(added.source_sha256).decode())


def _llm_settings(settings: Settings) -> LlmSettings:
    key = settings.llm_api_key
    return LlmSettings(
        api_base=settings.llm_api_base,
        api_key=None if key is None else key.get_secret_value(),
        timeout_s=settings.llm_timeout_s,
        max_tokens=settings.llm_max_tokens,
        context_tokens=settings.llm_context_tokens,
        input_usd_per_million=settings.llm_input_usd_per_million,
        output_usd_per_million=settings.llm_output_usd_per_million,
    )
