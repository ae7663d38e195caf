"""What several processes do at once in the tests; each opens the store for itself."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from store import Settings, open_store
from store.errors import BudgetExceededError
from store.leases import Claim

T = TypeVar("T")


def in_processes(work: Callable[..., T], calls: Sequence[tuple[object, ...]]) -> list[T]:
    """Run each call in a fresh process, all at once; their results in order."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(calls), mp_context=spawn) as pool:
        return [future.result(60) for future in [pool.submit(work, *call) for call in calls]]


def migrate(settings: Settings) -> bool:
    """Open and migrate; whether the schema is current afterwards."""
    with open_store(settings, migrate=True) as store:
        return store.database.at_head()


def claim_all(settings: Settings, owner: str, job_ids: Sequence[str]) -> list[str]:
    """Try to claim each job; those it got."""
    got = []
    with open_store(settings) as store:
        for job_id in job_ids:
            with store.database.write() as tx:
                if tx.leases.claim(job_id, owner, 90.0) is not None:
                    got.append(job_id)
    return got


def append_events(settings: Settings, job_id: str, tag: int, count: int) -> list[int]:
    """Append events to one job; the numbers they got."""
    with open_store(settings) as store:
        numbers = []
        for index in range(count):
            with store.database.write() as tx:
                numbers.append(tx.events.append(job_id, "note", {"tag": tag, "index": index}))
        return numbers


def reserve(settings: Settings, claim: Claim, usd: float, limit_usd: float, count: int) -> int:
    """Reserve model calls until the budget refuses; how many it got."""
    got = 0
    with open_store(settings) as store:
        for _ in range(count):
            try:
                with store.database.write() as tx:
                    tx.leases.hold(claim)
                    tx.llm_calls.reserve(claim.job_id, model="m", usd=usd, limit_usd=limit_usd)
            except BudgetExceededError:
                break
            got += 1
    return got
