"""Celery as one way to start `run_job`. The database owns the jobs; a message is only a wake-up."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import structlog
from celery import Celery, bootsteps, signals
from celery.worker import state
from kombu.exceptions import KombuError, OperationalError
from redis.exceptions import RedisError

from store import Settings, open_store
from store.errors import DatabaseUnavailableError
from workers.enqueue import CPU_QUEUE, TASK, enqueue
from workers.logs import configure_logs
from workers.processes import abandon, die_with_parent, kill_descendants
from workers.reaper import reap

if TYPE_CHECKING:
    from workers.parts import OpenParts

log = structlog.get_logger(__name__)

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


def run_worker(
    settings: Settings,
    queues: Sequence[str] = (CPU_QUEUE,),
    *,
    open_parts: OpenParts | None = None,
) -> int:
    """Run jobs of these queues, one at a time, until SIGTERM or SIGINT; the exit code.

    SIGTERM hands the running job back to the queue and ends within seconds. `open_parts` replaces
    the real policies and judge.
    """
    with open_store(settings, migrate=True):
        pass
    configure_logs()
    app = application(settings)

    @app.task(name=TASK)  # type: ignore[untyped-decorator]
    def run_job_task(job_id: str) -> None:
        _run(job_id, settings, open_parts)

    app.steps["consumer"].add(type("ReaperStep", (_ReaperStep,), {"settings": settings}))
    signals.worker_shutting_down.connect(_drain)
    signals.worker_process_init.connect(_prepare_process)
    app.worker_main(
        [
            "worker",
            "--pool=prefork",
            "--concurrency=1",
            f"--queues={','.join(queues)}",
            f"--hostname=pkforge-{os.getpid()}@%h",
            "--without-gossip",
            "--without-mingle",
            "--loglevel=INFO",
        ]
    )
    return 0


def _run(job_id: str, settings: Settings, open_parts: OpenParts | None) -> None:
    # Here, not above: the parent of the pool's processes must never load torch.
    from workers.runner import run_job

    end = run_job(job_id, settings, open_parts=open_parts, last_resort=abandon)
    kill_descendants()
    if end not in ("queued", None):
        return
    with open_store(settings) as store:
        if end is None:
            # Sent again because a worker died: its lease is in the way until it is reaped.
            reap(store, settings)
            return
        with store.database.read() as tx:
            target = tx.jobs.get(job_id).target
    enqueue(settings, job_id, target)


class _ReaperStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Reaps in the worker's main process, on the timer of its event loop.

    Not in a thread: the pool's processes are forked from this one, and a thread could hold a lock
    of the database's library at that moment.
    """

    requires = frozenset({"celery.worker.consumer.connection:Connection"})
    settings: Settings

    def start(self, parent: Any) -> None:
        """Begin when the consumer (re)starts: losing its broker clears the timer."""
        self._round()
        parent.timer.call_repeatedly(self.settings.reap_s, self._round)

    def _round(self) -> None:
        try:
            with open_store(self.settings) as store:
                reap(store, self.settings)
        except DatabaseUnavailableError as error:
            log.warning("reaper: trying again later", detail=str(error))


def _prepare_process(**_: Any) -> None:
    die_with_parent(os.getppid())


def _drain(**_: Any) -> None:
    """Tell the processes that run jobs to hand them back."""
    for request in list(state.active_requests):
        if request.worker_pid is not None:
            os.kill(request.worker_pid, signal.SIGTERM)
