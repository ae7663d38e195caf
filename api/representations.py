"""Stored rows as what travels over HTTP."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

from agent.spec import JobSpec
from api.schemas.attempts import AttemptRead, AttemptSummary, CostRead
from api.schemas.common import TimeKind, VerdictRead
from api.schemas.evaluations import EvaluationLinks, EvaluationRead
from api.schemas.jobs import (
    BestRead,
    BestSummary,
    BudgetBody,
    JobLinks,
    JobRead,
    JobState,
    JobSummaryRead,
    SpentRead,
)
from api.standing import void_reasons
from store.artifacts import Artifacts
from store.candidates import load_candidate
from store.database import Transaction
from store.jobs import JobSummary
from store.models import Attempt, Job

_VERDICT_FIELDS = frozenset(VerdictRead.model_fields)


def job_summary(summary: JobSummary) -> JobSummaryRead:
    """A job as a list shows it."""
    return JobSummaryRead(**_job_fields(summary), best=_best_summary(summary.best))


def job_detail(tx: Transaction, job: Job) -> JobRead:
    """A job with everything that is shown of one."""
    [summary] = tx.jobs.summaries([job])
    spec = JobSpec.from_json(job.spec)
    return JobRead(
        **_job_fields(summary),
        best=_best(tx, job, summary.best),
        detail=_ending(tx, job),
        shape=spec.shape,
        budget=BudgetBody(
            attempts=spec.budget.attempts, usd=spec.budget.usd, wall_s=spec.budget.wall_s
        ),
        spent=SpentRead(
            attempts=sum(attempt.phase == "search" for attempt in tx.attempts.list(job.id)),
            usd=summary.spent_usd,
            wall_s=job.ran_s,
        ),
        target_speedup=spec.target_speedup,
        seed=spec.seed,
        runs=job.runs,
        kernel_sha256=job.bundle_sha256,
        links=job_links(job.id),
    )


def evaluation_read(tx: Transaction, job: Job) -> EvaluationRead:
    """An evaluation with its verdict once there is one."""
    verdict = next(iter(tx.attempts.verdicts(job.id).values()), None)
    base = f"/v1/evaluations/{job.id}"
    return EvaluationRead(
        id=job.id,
        status=cast(JobState, job.state),
        problem=job.problem,
        target=job.target,
        created_at=job.created_at,
        finished_at=job.finished_at,
        verdict=None if verdict is None else verdict_read(verdict.body),
        detail=(job.error or {}).get("summary"),
        links=EvaluationLinks(self=base, events=f"/v1/jobs/{job.id}/events"),
    )


def job_links(job_id: str) -> JobLinks:
    """The addresses that belong to a job."""
    base = f"/v1/jobs/{job_id}"
    return JobLinks(
        self=base,
        events=f"{base}/events",
        attempts=f"{base}/attempts",
        cancel=f"{base}/cancel",
        kernel=f"{base}/kernel",
        verify=f"{base}/kernel/verify",
    )


def _job_fields(summary: JobSummary) -> dict[str, Any]:
    job = summary.job
    return {
        "id": job.id,
        "status": cast(JobState, job.state),
        "stop_reason": job.stop_reason,
        "cancel_requested": job.cancel_requested_at is not None,
        "problem": job.problem,
        "target": job.target,
        "policy": job.policy or "",
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
    }


def _ending(tx: Transaction, job: Job) -> str | None:
    """Why the job failed, or the sentence that its last event ends with."""
    if not job.finished:
        return None
    said = (job.error or {}).get("summary")
    if said is None:
        for event in tx.events.after(job.id, job.last_seq - 1):
            said = event.payload.get("detail")
    return None if said is None else str(said)


def _best_summary(attempt: Attempt | None) -> BestSummary | None:
    if attempt is None:
        return None
    return BestSummary(
        number=attempt.number,
        candidate_us=attempt.objective_us,
        speedup=attempt.speedup,
        kind=_kind(attempt),
    )


def _best(tx: Transaction, job: Job, attempt: Attempt | None) -> BestRead | None:
    if attempt is None:
        return None
    timings = tx.attempts.timings(attempt.id)
    verdict = tx.attempts.verdict(attempt.id)
    return BestRead(
        number=attempt.number,
        candidate_us=attempt.objective_us,
        speedup=attempt.speedup,
        kind=_kind(attempt),
        baseline_us=_mean(timing.baseline_us for timing in timings),
        roofline_us=_mean(timing.roofline_us for timing in timings),
        bottleneck=attempt.bottleneck,
        verified=attempt.phase == "confirm",
        void=void_reasons(job, {} if verdict is None else verdict.body),
    )


def attempt_summary(attempt: Attempt) -> AttemptSummary:
    """An attempt as a list shows it."""
    return AttemptSummary(
        id=attempt.id,
        job=attempt.job_id,
        number=attempt.number,
        parent=attempt.parent,
        phase=cast(Literal["search", "confirm"], attempt.phase),
        status=attempt.status or "pending",
        hypothesis=attempt.hypothesis,
        language=attempt.language,
        knobs=attempt.knobs,
        candidate=attempt.digest,
        candidate_us=attempt.objective_us,
        speedup=attempt.speedup,
        kind=_kind(attempt),
        bottleneck=attempt.bottleneck,
        cost=CostRead(usd=attempt.usd, tokens_in=attempt.tokens_in, tokens_out=attempt.tokens_out),
        created_at=attempt.created_at,
        judged_at=attempt.judged_at,
    )


def attempt_detail(tx: Transaction, artifacts: Artifacts, job_id: str, number: int) -> AttemptRead:
    """An attempt with its source, verdict and difference; NotFoundError."""
    attempt = tx.attempts.get(job_id, number)
    files = load_candidate(artifacts, attempt).files
    before: Mapping[str, str] = {}
    knobs_before: Mapping[str, int] = {}
    if attempt.parent is not None:
        parent = tx.attempts.get(job_id, attempt.parent)
        before = load_candidate(artifacts, parent).files
        knobs_before = _all_knobs(tx, parent)
    row = tx.attempts.verdict(attempt.id)
    verdict = None if row is None else verdict_read(row.body)
    knobs = _all_knobs(tx, attempt)
    return AttemptRead(
        **attempt_summary(attempt).model_dump(),
        files=dict(files),
        knob_changes={
            name: [knobs_before.get(name), knobs.get(name)]
            for name in sorted(knobs.keys() | knobs_before.keys())
            if attempt.parent is not None and knobs.get(name) != knobs_before.get(name)
        },
        diff=_diff(before, files) if attempt.parent is not None else "",
        summary=None if verdict is None else str(verdict.evidence.get("summary", "")),
        verdict=verdict,
    )


def verdict_read(body: Mapping[str, Any]) -> VerdictRead:
    """A stored verdict; what a newer judge added beside the known fields is left out."""
    return VerdictRead.model_validate(
        {name: value for name, value in body.items() if name in _VERDICT_FIELDS}
    )


def _all_knobs(tx: Transaction, attempt: Attempt) -> Mapping[str, int]:
    """Every knob with its value once a verdict says so; until then the chosen ones."""
    row = tx.attempts.verdict(attempt.id)
    return attempt.knobs if row is None else row.body.get("knobs") or attempt.knobs


def _diff(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    lines: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        lines += difflib.unified_diff(
            before.get(name, "").splitlines(),
            after.get(name, "").splitlines(),
            f"parent/{name}",
            f"attempt/{name}",
            lineterm="",
        )
    return "\n".join(lines)


def _kind(attempt: Attempt) -> TimeKind | None:
    return cast(TimeKind | None, attempt.kind)


def _mean(values: Iterable[float | None]) -> float | None:
    """The geometric mean, as attempts are compared by; None unless every value is there."""
    known = list(values)
    if not known or any(value is None or value <= 0 for value in known):
        return None
    return math.exp(math.fsum(math.log(cast(float, value)) for value in known) / len(known))
