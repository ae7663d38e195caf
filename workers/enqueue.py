"""Waking a worker for a queued job. The row is what counts: a lost wake-up is sent again."""

from __future__ import annotations

import structlog

from store import Settings
from workers.queues import TASK, queue_of

log = structlog.get_logger(__name__)


def enqueue(settings: Settings, job_id: str, target: str) -> bool:
    """Wake a worker for a job, after the commit that queued it; whether a message was sent.

    Without a broker the dispatcher finds the job by itself. A broker that does not answer within
    two seconds is no error either: the reaper sends the wake-up again.
    """
    if settings.embedded:
        return False
    from workers.broker import BROKER_ERRORS, application

    try:
        application(settings).send_task(TASK, args=[job_id], queue=queue_of(target), retry=False)
    except BROKER_ERRORS as error:
        log.warning("wake-up not sent", job_id=job_id, detail=str(error))
        return False
    return True
