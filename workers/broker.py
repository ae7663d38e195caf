"""The Celery application of an installation with a broker. A message is only a wake-up."""

from __future__ import annotations

from functools import lru_cache

from celery import Celery
from kombu.exceptions import KombuError, OperationalError
from redis.exceptions import RedisError

from store import Settings
from workers.queues import CPU_QUEUE

BROKER_ERRORS = (OperationalError, KombuError, RedisError, OSError)

_CONNECT_S = 2.0
_VISIBILITY_MARGIN_S = 3600.0
_LAST_RESORT_MARGIN_S = 600.0
_SOFT_SHUTDOWN_S = 120.0


@lru_cache(maxsize=4)
def application(settings: Settings) -> Celery:
    """The Celery application of an installation with a broker."""
    app = Celery("pkforge", broker=settings.broker_url, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_default_queue=CPU_QUEUE,
        # A message is acknowledged when the job has ended: the loss of a worker sends it again.
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        worker_max_tasks_per_child=1,
        task_time_limit=settings.max_job_wall_s + _LAST_RESORT_MARGIN_S,
        worker_soft_shutdown_timeout=_SOFT_SHUTDOWN_S,
        worker_hijack_root_logger=False,
        # A broker that comes back finds its workers waiting; their jobs go on meanwhile.
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_timeout=_CONNECT_S,
        broker_transport_options={
            # Longer than any job: a message that shows again would be a duplicate (harmless).
            "visibility_timeout": settings.max_job_wall_s + _VISIBILITY_MARGIN_S,
            "socket_connect_timeout": _CONNECT_S,
            # A producer gives up at once; the reaper sends the wake-up again.
            "max_retries": 0,
        },
    )
    return app
