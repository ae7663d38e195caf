"""The thread that keeps a lease alive and looks for cancellation while a job runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog

from store import Database, Settings
from store.errors import DatabaseUnavailableError, LeaseLostError
from store.leases import Claim
from workers.interruption import Interruption

log = structlog.get_logger(__name__)


class Stopwatch:
    """Working time in seconds, handed out in laps so that each second is booked once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since = time.monotonic()

    def lap(self) -> float:
        """Seconds since the last lap."""
        with self._lock:
            now = time.monotonic()
            lap, self._since = now - self._since, now
            return lap


class Heartbeat:
    """Renews the lease of `claim` while it is entered, and interrupts the work when it must end.

    `last_resort` is called, in its thread, when the work goes on for `settings.abandon_s` after it
    was told to end; it is expected to end the process. Call `work_ended` before what comes after
    the work.
    """

    def __init__(
        self,
        database: Database,
        claim: Claim,
        settings: Settings,
        interruption: Interruption,
        last_resort: Callable[[], None] | None = None,
    ) -> None:
        self.stopwatch = Stopwatch()
        self._database = database
        self._claim = claim
        self._settings = settings
        self._interruption = interruption
        self._last_resort = last_resort
        self._over = threading.Event()
        self._working = True
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._renewed_at = time.monotonic()

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
        self._thread.join()

    def work_ended(self) -> None:
        """The work has ended; what is left to do has to be waited for."""
        self._working = False

    def _run(self) -> None:
        told_at: float | None = None
        while not self._over.wait(self._settings.control_poll_s):
            self._beat()
            reason = self._interruption.reason
            if reason is None or not self._working or self._last_resort is None:
                continue
            told_at = told_at or time.monotonic()
            if time.monotonic() - told_at > self._settings.abandon_s:
                log.error("work does not end", job_id=self._claim.job_id, reason=reason)
                self._last_resort()

    def _beat(self) -> None:
        now = time.monotonic()
        try:
            if self._cancel_requested(renew=now - self._renewed_at >= self._settings.heartbeat_s):
                self._interruption.request("cancelled")
        except LeaseLostError as error:
            log.warning("lease lost", job_id=self._claim.job_id, detail=str(error))
            self._interruption.request("lease_lost")
        except DatabaseUnavailableError as error:
            silent_s = now - self._renewed_at
            log.warning("no heartbeat", job_id=self._claim.job_id, detail=str(error), s=silent_s)
            # By now another worker may own the job; this one could not tell.
            if silent_s > self._settings.lease_s:
                self._interruption.request("lease_lost")

    def _cancel_requested(self, *, renew: bool) -> bool:
        if not renew:
            with self._database.read() as tx:
                return tx.leases.cancel_requested(self._claim)
        with self._database.write() as tx:
            requested = tx.leases.renew(self._claim, self._settings.lease_s, self.stopwatch.lap())
        self._renewed_at = time.monotonic()
        return requested
