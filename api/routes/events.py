"""A job's events as server-sent events: replayed from the log, then followed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated

import anyio
from fastapi import APIRouter, Depends, Header, Path, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool

from api.context import Service, ServiceContext
from api.errors import ApiError
from api.schemas.common import EventRead
from store.models import JobEvent

router = APIRouter(tags=["events"])

POLL_S = 0.5
MAX_LIFETIME_S = 600.0
RETRY_MS = 1000
_BATCH = 200
_LAST = "job.finished"


class StreamOverError(Exception):
    """The client has seen the job's last event. Answered with 204, which ends an EventSource."""


async def stream_over(request: Request, error: Exception) -> Response:
    """The answer to `StreamOverError`."""
    return Response(status_code=204)


def _starting_point(
    service: Service,
    job_id: Annotated[str, Path(description="A job or an evaluation.")],
    last_event_id: Annotated[
        str | None,
        Header(description="Sequence number of the last event seen; replay starts after it."),
    ] = None,
) -> tuple[str, int]:
    """The job and the sequence number to start after; checked before the stream begins."""
    with service.store.database.read() as tx:
        job = tx.jobs.find(job_id)
        if job is None:
            raise ApiError("job_not_found", f"There is no job {job_id!r}.")
        # A header that is no number comes from another service's stream: start from the beginning.
        number = last_event_id or ""
        after = int(number) if number.isascii() and number.isdigit() and len(number) < 10 else 0
        if job.finished and after >= job.last_seq:
            raise StreamOverError
    return job_id, after


@router.get(
    "/jobs/{job_id}/events",
    operation_id="stream_job_events",
    response_class=EventSourceResponse,
    responses={204: {"description": "The job has ended and every event was seen."}},
)
async def stream_job_events(
    service: Service, start: Annotated[tuple[str, int], Depends(_starting_point)]
) -> AsyncIterator[ServerSentEvent]:
    """Stream a job's events from after `Last-Event-ID` to its end.

    Each event's `id` is its sequence number, its `event` the type, its data an event object. A
    stream that lives too long ends with `reconnect`; connect again to go on.
    """
    job_id, after = start
    deadline = time.monotonic() + MAX_LIFETIME_S
    yield ServerSentEvent(comment=f"events of {job_id}", retry=RETRY_MS)
    while not service.stopping.is_set():
        events = await run_in_threadpool(_read, service, job_id, after)
        for event in events:
            after = event.seq
            yield ServerSentEvent(
                id=str(event.seq), event=event.type, data=_represent(event), retry=None
            )
            if event.type == _LAST:
                return
        if time.monotonic() > deadline:
            yield ServerSentEvent(event="reconnect", data={"after": after})
            return
        if len(events) < _BATCH:
            await anyio.sleep(POLL_S)


def _read(service: ServiceContext, job_id: str, after: int) -> list[JobEvent]:
    with service.store.database.read() as tx:
        return list(tx.events.after(job_id, after, _BATCH))


def _represent(event: JobEvent) -> EventRead:
    return EventRead(seq=event.seq, type=event.type, at=event.at, payload=event.payload)
