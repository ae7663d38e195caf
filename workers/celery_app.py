"""Celery workers: one way to start `run_job`. The database owns the jobs."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import structlog
from celery import bootsteps, signals
from celery.worker import state

from store import Settings, open_store
from store.errors import DatabaseUnavailableError
from workers.broker import application
from workers.enqueue import enqueue
from workers.logs import configure_logs
from workers.processes import abandon, die_with_parent, kill_descendants
from workers.queues import CPU_QUEUE, TASK
from workers.reaper import reap

if TYPE_CHECKING:
    from workers.parts import OpenParts

log = structlog.get_logger(__name__)


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
