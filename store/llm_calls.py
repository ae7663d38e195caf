"""The ledger of model calls: reserve before, settle after, so that a crash cannot overspend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.orm import Session

from store.errors import BudgetExceededError, NotFoundError
from store.models import LlmCall


def spent_usd() -> ColumnElement[float]:
    """SQL for the dollars that the selected calls take from a budget."""
    committed = case((LlmCall.settled, func.coalesce(LlmCall.usd, 0.0)), else_=LlmCall.reserved_usd)
    return func.coalesce(func.sum(committed), 0.0)


class LlmCallRepository:
    """Model calls of jobs, within one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def reserve(self, job_id: str, *, model: str, usd: float, limit_usd: float) -> int:
        """Store a call that is about to be made and return its number within the job.

        Raises BudgetExceededError if what is spent and reserved, plus `usd`, passes `limit_usd`.
        The caller holds the job's row (`leases.hold`), so two reservations cannot both fit.
        """
        row = self._session.execute(
            select(spent_usd(), func.coalesce(func.max(LlmCall.number), 0)).where(
                LlmCall.job_id == job_id
            )
        ).one()
        committed, last = float(row[0]), int(row[1])
        if committed + usd > limit_usd:
            raise BudgetExceededError(committed=committed, asked=usd, limit=limit_usd)
        self._session.add(
            LlmCall(
                job_id=job_id,
                number=last + 1,
                model=model,
                reserved_usd=usd,
                created_at=datetime.now(UTC),
            )
        )
        self._session.flush()
        return last + 1

    def settle(
        self,
        job_id: str,
        number: int,
        *,
        reply: str | None,
        error: str | None,
        usd: float | None,
        cost_source: str,
        tokens_in: int,
        tokens_out: int,
        latency_s: float,
        body: Mapping[str, Any],
    ) -> None:
        """Store what came back from a reserved call, and its price (None: unknown)."""
        call = self.get(job_id, number)
        call.settled = True
        call.settled_at = datetime.now(UTC)
        call.reply = reply
        call.error = error
        call.usd = usd
        call.cost_source = cost_source
        call.tokens_in = tokens_in
        call.tokens_out = tokens_out
        call.latency_s = latency_s
        call.body = dict(body)
        self._session.flush()

    def discard(self, job_id: str, number: int, why: str) -> None:
        """Mark a reply as unusable: paid for, never acted on."""
        self.get(job_id, number).unusable = why
        self._session.flush()

    def get(self, job_id: str, number: int) -> LlmCall:
        """One call; NotFoundError."""
        call = self._session.get(LlmCall, (job_id, number))
        if call is None:
            raise NotFoundError(f"model call of {job_id}", number)
        return call

    def list(self, job_id: str) -> Sequence[LlmCall]:
        """All calls of a job, in order of number."""
        return self._session.scalars(
            select(LlmCall).where(LlmCall.job_id == job_id).order_by(LlmCall.number)
        ).all()
