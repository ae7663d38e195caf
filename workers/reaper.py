"""Returning to the queue what dead workers held, and waking workers again for what waits."""

from __future__ import annotations

import structlog

from store import Settings, Store
from store.leases import Held
from workers.enqueue import enqueue
from workers.identity import fate_of, host

log = structlog.get_logger(__name__)


def reap(store: Store, settings: Settings) -> int:
    """One round; how many jobs were taken from dead workers. Any number of processes may do it.

    A worker of this host is known to be dead as soon as its process is gone; one of another host
    when its lease has run out.
    """
    with store.database.read() as tx:
        gone = [(held, "its lease ran out") for held in tx.leases.expired()]
        here = tx.leases.owned_on(host())
    gone += [(held, "its process is gone") for held in here if fate_of(held.owner) == "dead"]
    reaped = sum(_reclaim(store, settings, held, cause) for held, cause in gone)
    _wake(store, settings)
    return reaped


def _reclaim(store: Store, settings: Settings, held: Held, cause: str) -> bool:
    with store.database.write() as tx:
        state = tx.leases.reclaim(held, settings.max_crashes, cause)
    if state is None:
        return False
    log.warning("worker lost", job_id=held.job_id, owner=held.owner, cause=cause, now=state)
    if state == "queued":
        enqueue(settings, held.job_id, held.target)
    return True


def _wake(store: Store, settings: Settings) -> None:
    if settings.embedded:
        return
    with store.database.write() as tx:
        due = tx.leases.due_wakeups(settings.resend_s)
    for wakeup in due:
        enqueue(settings, wakeup.job_id, wakeup.target)
