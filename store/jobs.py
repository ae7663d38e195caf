"""Jobs as users see them: created, listed, cancelled. Who runs them is in `store.leases`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from store.errors import AlreadyCancelledError, AlreadyFinishedError, NotFoundError
from store.events import EventRepository
from store.ids import new_id
from store.llm_calls import spent_usd
from store.models import FINAL_STATES, Attempt, Job, LlmCall

JobKind = Literal["optimization", "evaluation"]


@dataclass(frozen=True)
class JobSummary:
    """A job with what a list shows of it.

    `spent_usd` includes the reservations of model calls that a crash cut off; `best` is the job's
    result, or the best attempt so far.
    """

    job: Job
    attempts: int
    spent_usd: float
    best: Attempt | None


class JobRepository:
    """Jobs, within one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def create(
        self,
        kind: JobKind,
        spec: Mapping[str, Any],
        *,
        problem_id: str | None = None,
    ) -> Job:
        """Queue a job. `spec` is stored whole; its `problem`, `target` and `policy` are shown.

        `problem_id` names a problem that a user added. Wake a worker after the commit
        (`workers.enqueue`). Writes `job.queued`.
        """
        now = datetime.now(UTC)
        job = Job(
            id=new_id("job" if kind == "optimization" else "evl"),
            kind=kind,
            state="queued",
            problem=spec["problem"],
            problem_id=problem_id,
            target=spec["target"],
            policy=spec.get("policy"),
            spec=dict(spec),
            created_at=now,
            woken_at=now,
        )
        self._session.add(job)
        self._session.flush()
        EventRepository(self._session).append(job.id, "job.queued")
        self._session.refresh(job)
        return job

    def find(self, job_id: str) -> Job | None:
        """The job with this id, read fresh."""
        return self._session.get(Job, job_id, populate_existing=True)

    def get(self, job_id: str, kind: JobKind | None = None) -> Job:
        """The job with this id (and of this kind); NotFoundError."""
        job = self.find(job_id)
        if job is None or (kind is not None and job.kind != kind):
            raise NotFoundError(kind or "job", job_id)
        return job

    def page(
        self,
        kind: JobKind,
        *,
        limit: int = 50,
        before: str | None = None,
        state: str | None = None,
        problem: str | None = None,
    ) -> Sequence[Job]:
        """Up to `limit` jobs, newest first, that are older than id `before`. Ids sort by time."""
        query = select(Job).where(Job.kind == kind).order_by(Job.id.desc()).limit(limit)
        if before is not None:
            query = query.where(Job.id < before)
        if state is not None:
            query = query.where(Job.state == state)
        if problem is not None:
            query = query.where(Job.problem == problem)
        return self._session.scalars(query).all()

    def summaries(self, jobs: Sequence[Job]) -> list[JobSummary]:
        """The given jobs with counts, costs and their best attempts, in three queries."""
        ids = [job.id for job in jobs]
        counted = self._session.execute(
            select(Attempt.job_id, func.count())
            .where(Attempt.job_id.in_(ids))
            .group_by(Attempt.job_id)
        )
        counts = {row[0]: row[1] for row in counted}
        costs = self._session.execute(
            select(LlmCall.job_id, spent_usd())
            .where(LlmCall.job_id.in_(ids))
            .group_by(LlmCall.job_id)
        )
        spent = {row[0]: float(row[1]) for row in costs}
        bests = self._session.scalars(
            select(Attempt)
            .join(Job, (Job.id == Attempt.job_id) & (Job.best_number == Attempt.number))
            .where(Job.id.in_(ids))
        )
        best = {attempt.job_id: attempt for attempt in bests}
        return [
            JobSummary(job, counts.get(job.id, 0), spent.get(job.id, 0.0), best.get(job.id))
            for job in jobs
        ]

    def queued(self, limit: int, *, excluding: Sequence[str] = ()) -> list[str]:
        """Ids of queued jobs, oldest first, without those of `excluding`."""
        query = select(Job.id).where(Job.state == "queued").order_by(Job.id).limit(limit)
        if excluding:
            query = query.where(Job.id.not_in(excluding))
        return list(self._session.scalars(query))

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        rows = self._session.execute(select(Job.state, func.count()).group_by(Job.state))
        return {row[0]: row[1] for row in rows}

    def set_best(self, job_id: str, number: int) -> None:
        """Note the best attempt so far, for lists and for a job that is cancelled."""
        self._session.execute(update(Job).where(Job.id == job_id).values(best_number=number))

    def request_cancel(self, job_id: str) -> Job:
        """Ask for the end of a job: a queued one ends now, a running one within seconds.

        Raises NotFoundError, AlreadyFinishedError, or AlreadyCancelledError on a second request.
        Writes `cancel.requested`, and `job.finished` for a queued job.
        """
        now = datetime.now(UTC)
        asked = self._session.execute(
            update(Job)
            .where(
                Job.id == job_id,
                Job.state.not_in(FINAL_STATES),
                Job.cancel_requested_at.is_(None),
            )
            .values(cancel_requested_at=now)
            .returning(Job.id)
        ).first()
        job = self.get(job_id)
        if asked is None:
            if job.cancel_requested_at is not None:
                raise AlreadyCancelledError(f"the cancellation of {job_id} was requested before")
            raise AlreadyFinishedError(f"{job_id} has already ended: it {job.state}")
        events = EventRepository(self._session)
        events.append(job_id, "cancel.requested")
        # The row is locked since the first update, so no worker claims the job in between.
        if job.state == "queued":
            job.state = "cancelled"
            job.stop_reason = "cancelled"
            job.finished_at = now
            self._session.flush()
            events.append(
                job_id, "job.finished", {"status": "cancelled", "stop_reason": "cancelled"}
            )
        self._session.refresh(job)
        return job
