"""The append-only log of each job: what clients follow and what explains a job afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from store.errors import NotFoundError
from store.models import Job, JobEvent


class EventRepository:
    """Events of jobs, within one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def append(self, job_id: str, type: str, payload: Mapping[str, Any] | None = None) -> int:
        """Append an event in the running transaction and return its `seq`.

        The counter lives on the job's row, whose lock is held until the commit: events become
        visible in order of `seq`, so a reader that asks for `seq > last` misses none.
        """
        seq = self._session.scalar(
            update(Job)
            .where(Job.id == job_id)
            .values(last_seq=Job.last_seq + 1)
            .returning(Job.last_seq)
            .execution_options(synchronize_session=False)
        )
        if seq is None:
            raise NotFoundError("job", job_id)
        self._session.add(
            JobEvent(
                job_id=job_id, seq=seq, type=type, at=datetime.now(UTC), payload=dict(payload or {})
            )
        )
        self._session.flush()
        return seq

    def after(self, job_id: str, seq: int = 0, limit: int = 500) -> Sequence[JobEvent]:
        """Up to `limit` events of a job with a greater `seq`, in order."""
        return self._session.scalars(
            select(JobEvent)
            .where(JobEvent.job_id == job_id, JobEvent.seq > seq)
            .order_by(JobEvent.seq)
            .limit(limit)
        ).all()
