"""Attempts, their verdicts and timings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from store.errors import AttemptStateError, NotFoundError
from store.ids import new_id
from store.models import Attempt, Timing, Verdict


class AttemptRepository:
    """Attempts of jobs, within one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def propose(
        self,
        job_id: str,
        *,
        parent: int | None,
        phase: str,
        hypothesis: str,
        language: str,
        digest: str,
        source_sha256: str,
        knobs: Mapping[str, int],
        predicted_us: float | None = None,
        llm_call: int | None = None,
        usd: float | None = 0.0,
        tokens_in: int = 0,
        tokens_out: int = 0,
    ) -> Attempt:
        """Store the next attempt of a job, to be judged; `source_sha256` is a recorded artifact.

        The caller holds the job's row (`leases.hold`). Raises AttemptStateError while an earlier
        attempt is unjudged: it has to be judged first, or it would be lost.
        """
        if (pending := self.pending(job_id)) is not None:
            raise AttemptStateError(
                f"attempt {pending.number} of {job_id} is not judged yet: judge it before the next"
            )
        last = self._session.scalar(
            select(func.coalesce(func.max(Attempt.number), 0)).where(Attempt.job_id == job_id)
        )
        attempt = Attempt(
            id=new_id("att"),
            job_id=job_id,
            number=(last or 0) + 1,
            parent=parent,
            phase=phase,
            hypothesis=hypothesis,
            language=language,
            digest=digest,
            source_sha256=source_sha256,
            knobs=dict(knobs),
            predicted_us=predicted_us,
            llm_call=llm_call,
            usd=usd,
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            created_at=datetime.now(UTC),
        )
        self._session.add(attempt)
        self._session.flush()
        return attempt

    def judged(
        self,
        job_id: str,
        number: int,
        verdict: Mapping[str, Any],
        *,
        objective_us: float | None,
        speedup: float | None,
        kind: str | None,
        bottleneck: str | None,
    ) -> Attempt:
        """Store the verdict of an attempt (the judge's JSON) and what attempts are compared by.

        Raises NotFoundError, or AttemptStateError if it is judged already.
        """
        attempt = self.get(job_id, number)
        if attempt.judged_at is not None:
            raise AttemptStateError(f"attempt {number} of {job_id} is judged already")
        now = datetime.now(UTC)
        attempt.judged_at = now
        attempt.status = verdict["status"]
        attempt.objective_us = objective_us
        attempt.speedup = speedup
        attempt.kind = kind
        attempt.bottleneck = bottleneck
        self._session.add(
            Verdict(
                attempt_id=attempt.id,
                status=verdict["status"],
                stage=verdict["stage"],
                depth=verdict["depth"],
                body=dict(verdict),
                created_at=now,
            )
        )
        self._session.flush()
        self._session.add_all(
            Timing(
                attempt_id=attempt.id,
                position=position,
                shape=timing["shape"],
                kind=timing["kind"],
                candidate_us=timing["candidate_us"],
                baseline_us=timing.get("baseline_us"),
                speedup=timing.get("speedup"),
                roofline_us=timing.get("roofline_us"),
                roofline_fraction=timing.get("roofline_fraction"),
                bottleneck=timing.get("bottleneck"),
            )
            for position, timing in enumerate(verdict["timings"])
        )
        self._session.flush()
        return attempt

    def pending(self, job_id: str) -> Attempt | None:
        """The attempt that is stored and not judged, if there is one."""
        return self._session.scalar(
            select(Attempt).where(Attempt.job_id == job_id, Attempt.judged_at.is_(None)).limit(1)
        )

    def get(self, job_id: str, number: int) -> Attempt:
        """One attempt; NotFoundError."""
        attempt = self._session.scalar(
            select(Attempt).where(Attempt.job_id == job_id, Attempt.number == number)
        )
        if attempt is None:
            raise NotFoundError(f"attempt of {job_id}", number)
        return attempt

    def list(self, job_id: str, *, after: int = 0, limit: int | None = None) -> Sequence[Attempt]:
        """Attempts of a job with a greater number, in order."""
        query = (
            select(Attempt)
            .where(Attempt.job_id == job_id, Attempt.number > after)
            .order_by(Attempt.number)
            .limit(limit)
        )
        return self._session.scalars(query).all()

    def verdict(self, attempt_id: str) -> Verdict | None:
        """The whole verdict of an attempt, once it is judged."""
        return self._session.get(Verdict, attempt_id)

    def verdicts(self, job_id: str) -> dict[int, Verdict]:
        """The verdicts of a job, by number of the attempt."""
        rows = self._session.execute(
            select(Attempt.number, Verdict)
            .join(Verdict, Verdict.attempt_id == Attempt.id)
            .where(Attempt.job_id == job_id)
        )
        return {row[0]: row[1] for row in rows}

    def timings(self, attempt_id: str) -> Sequence[Timing]:
        """The timings of an attempt, in the judge's order."""
        return self._session.scalars(
            select(Timing).where(Timing.attempt_id == attempt_id).order_by(Timing.position)
        ).all()
