"""Waking a worker for a queued job. The row is what counts: a lost wake-up is sent again."""

from __future__ import annotations

import structlog

from store import Settings

log = structlog.get_logger(__name__)

CPU_QUEUE = "cpu"
TASK = "workers.run_job"


def queue_of(target: str) -> str:
    """The queue of the workers that can run jobs on a target, named after their capability.

    `sim:h200x4` needs any CPU: `cpu`; `cuda:h200x4` a node with such GPUs: `gpu.h200.x4`.
    """
    backend, _, machine = target.partition(":")
    if backend != "cuda":
        return CPU_QUEUE
    sheet, _, world_size = machine.rpartition("x")
    return f"gpu.{sheet}.x{world_size}"


def enqueue(settings: Settings, job_id: str, target: str) -> bool:
    """Wake a worker for a job, after the commit that queued it; whether a message was sent.

    Without a broker the dispatcher finds the job by itself. A broker that does not answer within
    two seconds is no error either: the reaper sends the wake-up again.
    """
    if settings.embedded:
        return False
    from workers.celery_app import BROKER_ERRORS, application

    try:
        application(settings).send_task(TASK, args=[job_id], queue=queue_of(target), retry=False)
    except BROKER_ERRORS as error:
        log.warning("wake-up not sent", job_id=job_id, detail=str(error))
        return False
    return True
