"""The workers of a service without a broker: each queued job runs in a process of its own."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import structlog

from store import Settings, Store, open_store
from store.errors import DatabaseUnavailableError
from workers.processes import RUN_JOB, JobProcess
from workers.reaper import reap

log = structlog.get_logger(__name__)

_JOIN_MARGIN_S = 10.0


@dataclass(frozen=True)
class _Running:
    job_id: str
    fence: int
    process: JobProcess


class Dispatcher:
    """Runs queued jobs, oldest first, at most `settings.parallel_jobs` at once, while entered.

    Leaving it drains: each job hands itself back within `settings.drain_s` and goes on at the next
    start. A service that is killed takes its jobs' processes along; the next one notices at once
    and goes on with their jobs. `command`, with a job's id after it, runs one job.
    """

    def __init__(self, settings: Settings, *, command: Sequence[str] = RUN_JOB) -> None:
        self._settings = settings
        self._command = tuple(command)
        self._over = threading.Event()
        # The kernel ends a job's process with the *thread* that started it: one thread for all.
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)
        self._running: list[_Running] = []
        self._reap_at = 0.0
        self._start_failures: Counter[str] = Counter()
        self._not_before: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join(self._settings.drain_s + _JOIN_MARGIN_S)

    def _run(self) -> None:
        with open_store(self._settings) as store:
            while not self._over.is_set():
                try:
                    self._round(store)
                except DatabaseUnavailableError as error:
                    log.warning("dispatcher: trying again", detail=str(error))
                except Exception:
                    log.exception("dispatcher: trying again")
                self._over.wait(self._settings.dispatch_poll_s)
            self._drain(store)

    def _round(self, store: Store) -> None:
        for running in list(self._running):
            code = running.process.poll()
            if code is not None:
                self._running.remove(running)
                self._ended(store, running, code)
        if time.monotonic() >= self._reap_at:
            reap(store, self._settings)
            self._reap_at = time.monotonic() + self._settings.reap_s
        free = self._settings.parallel_jobs - len(self._running)
        if free > 0:
            self._start(store, free)

    def _start(self, store: Store, free: int) -> None:
        now = time.monotonic()
        waiting = [job_id for job_id, moment in self._not_before.items() if moment > now]
        excluding = [running.job_id for running in self._running] + waiting
        with store.database.read() as tx:
            jobs = [tx.jobs.get(job_id) for job_id in tx.jobs.queued(free, excluding=excluding)]
        for job in jobs:
            command = [*self._command, job.id]
            process = JobProcess(command, self._settings.environment())
            self._running.append(_Running(job.id, job.fence, process))
            log.info("started", job_id=job.id, pid=process.pid)

    def _ended(self, store: Store, running: _Running, code: int) -> None:
        """Clean up after a job's process; a job that it never claimed is tried again later."""
        self._not_before.pop(running.job_id, None)
        if code == 0:
            self._start_failures.pop(running.job_id, None)
            return
        log.warning("a job's process failed", job_id=running.job_id, code=code)
        reap(store, self._settings)
        with store.database.read() as tx:
            job = tx.jobs.get(running.job_id)
        if job.state != "queued" or job.fence != running.fence:
            return
        self._start_failures[job.id] += 1
        failures = self._start_failures[job.id]
        self._not_before[job.id] = time.monotonic() + 2.0**failures
        if failures >= self._settings.max_crashes:
            summary = (
                f"its process ended {failures} times with code {code} before it could begin; "
                "the service's log says why"
            )
            with store.database.write() as tx:
                tx.leases.fail_queued(job.id, {"reason": "worker_lost", "summary": summary})
            del self._start_failures[job.id], self._not_before[job.id]

    def _drain(self, store: Store) -> None:
        for running in self._running:
            running.process.drain()
        deadline = time.monotonic() + self._settings.drain_s
        for running in self._running:
            running.process.end(max(0.0, deadline - time.monotonic()))
        try:
            reap(store, self._settings)
        except DatabaseUnavailableError as error:
            log.warning("dispatcher: the next start goes on with its jobs", detail=str(error))
