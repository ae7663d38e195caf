"""Running one job: claim it, go on from what is stored, end it or hand it back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import structlog

from agent.loop import Outcome, optimize
from agent.ranking import best_verified
from agent.records import AttemptRecord, Depth, Proposal
from agent.spec import JobSpec, SpecError
from pk_runtime.candidate import Candidate
from sandbox.verdict import Verdict
from store import Settings, Store, open_store
from store.errors import DatabaseUnavailableError, LeaseLostError
from store.leases import Claim, FinalState
from workers.bundling import bundle_of
from workers.evaluation import EvaluationSpec
from workers.heartbeat import Heartbeat
from workers.identity import own_name
from workers.interruption import Interrupted, Interruption
from workers.journal import StoreJournal
from workers.judging import open_parts as real_parts
from workers.parts import JobCannotRunError, OpenParts, Parts, Question

log = structlog.get_logger(__name__)

INFRA_RETRIES = 2

End = Literal["succeeded", "failed", "cancelled", "queued", "lost"]


@dataclass(frozen=True)
class Result:
    """How a job ends, before it is written down."""

    state: FinalState
    stop_reason: str | None
    detail: str
    error: dict[str, Any] | None = None


def run_job(
    job_id: str,
    settings: Settings,
    *,
    open_parts: OpenParts | None = None,
    last_resort: Callable[[], None] | None = None,
) -> End | None:
    """Run a queued job to its end, or until this process must end; None if it is not queued.

    Returns its final state, `queued` if it was handed back (SIGTERM), or `lost` if another worker
    took it over meanwhile. Call it in the main thread, so that a cancellation ends an evaluation at
    once; `last_resort` ends the process if even that does not help. `open_parts` replaces the real
    policies and judge. Raises DatabaseUnavailableError: the reaper then returns the job to the
    queue.
    """
    with open_store(settings) as store:
        with store.database.write() as tx:
            claim = tx.leases.claim(job_id, own_name(), settings.lease_s)
        if claim is None:
            log.info("not queued", job_id=job_id)
            return None
        with structlog.contextvars.bound_contextvars(job_id=job_id, fence=claim.fence):
            log.info("claimed", owner=claim.owner)
            end = _Run(store, settings, claim, open_parts or real_parts, last_resort).to_end()
            log.info("released", state=end)
            return end


class _Run:
    """One claim of one job."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        claim: Claim,
        open_parts: OpenParts,
        last_resort: Callable[[], None] | None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._claim = claim
        self._open_parts = open_parts
        with store.database.read() as tx:
            self._job = tx.jobs.get(claim.job_id)
        self._interruption = Interruption()
        self._heartbeat = Heartbeat(
            store.database, claim, settings, self._interruption, last_resort
        )

    def to_end(self) -> End:
        """Work until the job ends, is handed back or is lost."""
        try:
            with self._interruption, self._heartbeat:
                try:
                    with self._interruption.interruptible():
                        result = self._work()
                except Interrupted as interrupted:
                    if interrupted.reason == "lease_lost":
                        return "lost"
                    if interrupted.reason == "drained":
                        return self._hand_back()
                    result = Result("cancelled", "cancelled", "The job was cancelled.")
                self._heartbeat.work_ended()
                return self._finish(result)
        except LeaseLostError as error:
            log.warning("lease lost", detail=str(error))
            return "lost"

    def _work(self) -> Result:
        """The job's work, with what it may raise turned into how the job ends."""
        try:
            with self._open_parts(self._settings, self._store, self._job) as parts:
                if self._job.kind == "evaluation":
                    return self._evaluate(parts, EvaluationSpec.from_json(self._job.spec))
                return self._optimize(parts, JobSpec.from_json(self._job.spec))
        except (LeaseLostError, DatabaseUnavailableError):
            raise
        except JobCannotRunError as error:
            return _failed(error.reason, str(error))
        except SpecError as error:
            return _failed("invalid_spec", str(error))
        except Exception as error:
            log.exception("the job failed")
            return _failed("internal_error", f"{type(error).__name__}: {error}")

    def _optimize(self, parts: Parts, spec: JobSpec) -> Result:
        journal = self._journal(spec.budget.usd)
        shapes = None if spec.shape is None else (spec.shape,)

        def evaluate(candidate: Candidate, depth: Depth, incumbent: Candidate | None) -> Verdict:
            question = Question(candidate, depth, shapes, spec.seed, incumbent)
            return parts.judge(question, journal.progress)

        outcome = optimize(spec, parts.policy(spec), evaluate, journal, time.monotonic)
        return _optimized(outcome)

    def _evaluate(self, parts: Parts, spec: EvaluationSpec) -> Result:
        journal = self._journal()
        record = next(iter(journal.attempts()), None)
        if record is None:
            phase: Literal["search", "confirm"] = "confirm" if spec.depth == "full" else "search"
            record = journal.propose(Proposal(candidate=spec.candidate, hypothesis="", phase=phase))
        verdict = record.verdict
        if verdict is None:
            question = Question(spec.candidate, spec.depth, spec.shapes, spec.seed)
            verdict = parts.judge(question, journal.progress)
            for _ in range(INFRA_RETRIES):
                if verdict.status == "infra_error":
                    verdict = parts.judge(question, journal.progress)
            journal.judged(record.number, verdict)
        if verdict.status == "infra_error":
            return _failed("infra_error", verdict.summary)
        return Result("succeeded", None, verdict.summary)

    def _journal(self, limit_usd: float = 0.0) -> StoreJournal:
        return StoreJournal(self._store, self._claim, self._interruption, limit_usd=limit_usd)

    def _hand_back(self) -> End:
        with self._store.database.write() as tx:
            tx.leases.hand_back(self._claim, self._heartbeat.stopwatch.lap(), "drained")
        return "queued"

    def _finish(self, result: Result) -> End:
        """Write down how the job ended; whatever ended it, what it verified is its result."""
        attempts = self._journal().attempts()
        bundle = None
        if self._job.kind == "evaluation":
            best = next((attempt for attempt in attempts if attempt.verdict is not None), None)
        elif best := best_verified(attempts):
            try:
                bundle = self._bundle(best, attempts)
            except Exception as error:
                log.exception("no bundle")
                summary = f"The kernel's bundle could not be made: {type(error).__name__}: {error}"
                problem = {"reason": "bundle_failed", "summary": summary}
                result = replace(result, state="failed", detail=summary, error=problem)
        sha256 = None if bundle is None else self._store.artifacts.put(bundle)
        with self._store.database.write() as tx:
            # First of all, so that a job that another worker owns keeps what that one found.
            tx.leases.hold(self._claim)
            if bundle is not None and sha256 is not None:
                tx.artifacts.record(sha256, kind="bundle", size=len(bundle))
            tx.leases.finish(
                self._claim,
                result.state,
                stop_reason=result.stop_reason,
                detail=result.detail,
                best_number=None if best is None else best.number,
                bundle_sha256=sha256,
                error=result.error,
                ran_s=self._heartbeat.stopwatch.lap(),
            )
        return result.state

    def _bundle(self, best: AttemptRecord, attempts: Sequence[AttemptRecord]) -> bytes:
        with self._open_parts(self._settings, self._store, self._job) as parts:
            return bundle_of(self._job, best, attempts, parts.interface())


def _optimized(outcome: Outcome) -> Result:
    """A job with a verified kernel succeeded, whatever ended it; without one it failed."""
    state: FinalState = "failed" if outcome.best is None else "succeeded"
    if outcome.stop_reason == "cancelled":
        state = "cancelled"
    error = None
    if state == "failed":
        summary = f"No attempt was verified as correct. {outcome.detail}"
        error = {"reason": "no_kernel", "summary": summary}
    return Result(state, outcome.stop_reason, outcome.detail, error)


def _failed(reason: str, summary: str) -> Result:
    return Result("failed", "infra", summary, error={"reason": reason, "summary": summary})
