"""Attempts of a job: listed, and one with its source, verdict and difference to its parent."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from api.context import Service
from api.errors import ApiError, FieldError
from api.representations import attempt_detail, attempt_summary
from api.routes.jobs import JobId, job_not_found
from api.schemas.attempts import AttemptRead, AttemptSummary
from api.schemas.common import Page
from store.errors import NotFoundError

router = APIRouter(prefix="/jobs/{job_id}/attempts", tags=["attempts"])


@router.get("", operation_id="list_attempts")
def list_attempts(
    job_id: JobId,
    service: Service,
    limit: Annotated[int, Query(description="Entries a page.", ge=1, le=100)] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
) -> Page[AttemptSummary]:
    """List a job's attempts in order of their number."""
    after = cursor or "0"
    if not (after.isascii() and after.isdigit() and len(after) < 10):
        raise ApiError(
            "invalid_cursor",
            f"{after[:80]!r} is not a cursor of this collection.",
            errors=[FieldError("not a cursor", parameter="cursor")],
        )
    with service.store.database.read() as tx:
        if tx.jobs.find(job_id) is None:
            raise job_not_found(job_id)
        rows = tx.attempts.list(job_id, after=int(after), limit=limit + 1)
    items = [attempt_summary(row) for row in rows[:limit]]
    return Page(items=items, next_cursor=str(items[-1].number) if len(rows) > limit else None)


@router.get("/{number}", operation_id="show_attempt")
def show_attempt(
    job_id: JobId,
    number: Annotated[int, Path(description="Number of the attempt within the job.", ge=1)],
    service: Service,
) -> AttemptRead:
    """Show one attempt: its source, its verdict, and how it differs from its parent."""
    with service.store.database.read() as tx:
        if tx.jobs.find(job_id) is None:
            raise job_not_found(job_id)
        try:
            return attempt_detail(tx, service.store.artifacts, job_id, number)
        except NotFoundError:
            detail = f"Job {job_id} has no attempt {number}."
            raise ApiError("attempt_not_found", detail) from None
