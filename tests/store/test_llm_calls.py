"""The ledger: never more reserved and spent than the budget, whatever crashes."""

from __future__ import annotations

from typing import Any

import pytest

from store import Settings, Store
from store.errors import BudgetExceededError, NotFoundError
from store.leases import Claim
from tests.store import examples, racing


def reserve(store: Store, claim: Claim, usd: float, limit_usd: float = 1.0) -> int:
    with store.database.write() as tx:
        tx.leases.hold(claim)
        return tx.llm_calls.reserve(claim.job_id, model="m", usd=usd, limit_usd=limit_usd)


def settle(store: Store, claim: Claim, number: int, usd: float | None, **changes: Any) -> None:
    values: dict[str, Any] = {
        "reply": "a kernel",
        "error": None,
        "usd": usd,
        "cost_source": "litellm",
        "tokens_in": 100,
        "tokens_out": 10,
        "latency_s": 0.5,
        "body": {"request": [{"role": "user", "content": "..."}]},
    }
    with store.database.write() as tx:
        tx.llm_calls.settle(claim.job_id, number, **(values | changes))


def test_a_reservation_counts_until_it_is_settled(store: Store) -> None:
    claim = examples.started(store)
    assert reserve(store, claim, 0.6) == 1
    with pytest.raises(BudgetExceededError, match=r"\$0\.6000 of \$1\.00 is spent or reserved"):
        reserve(store, claim, 0.5)
    settle(store, claim, 1, 0.1)
    assert reserve(store, claim, 0.5) == 2
    with store.database.read() as tx:
        (summary,) = tx.jobs.summaries([tx.jobs.get(claim.job_id)])
    assert summary.spent_usd == pytest.approx(0.6)


def test_a_call_cut_off_by_a_crash_stays_charged(store: Store) -> None:
    claim = examples.started(store)
    reserve(store, claim, 0.9)
    with store.database.write() as tx:
        tx.leases.hand_back(claim, 0, "drained")
    successor = examples.claim(store, claim.job_id)
    with pytest.raises(BudgetExceededError):
        reserve(store, successor, 0.2)


def test_an_unknown_price_counts_nothing(store: Store) -> None:
    claim = examples.started(store)
    reserve(store, claim, 0.9)
    settle(store, claim, 1, None, cost_source="unknown")
    assert reserve(store, claim, 0.9) == 2


def test_what_came_back_is_kept(store: Store) -> None:
    claim = examples.started(store)
    reserve(store, claim, 0.1)
    settle(store, claim, 1, 0.05)
    with store.database.write() as tx:
        tx.llm_calls.discard(claim.job_id, 1, "there is no code in it")
    with store.database.read() as tx:
        (call,) = tx.llm_calls.list(claim.job_id)
    assert (call.settled, call.reply, call.usd, call.tokens_in) == (True, "a kernel", 0.05, 100)
    assert call.unusable == "there is no code in it"
    assert call.body == {"request": [{"role": "user", "content": "..."}]}
    assert call.settled_at is not None


def test_only_a_reserved_call_can_be_settled(store: Store) -> None:
    claim = examples.started(store)
    with pytest.raises(NotFoundError, match="model call"):
        settle(store, claim, 1, 0.1)


@pytest.mark.slow
def test_processes_that_reserve_at_once_stay_within_the_budget(
    settings: Settings, store: Store
) -> None:
    claim = examples.started(store)
    got = racing.in_processes(racing.reserve, [(settings, claim, 0.125, 2.0, 20)] * 3)
    assert sum(got) == 16
    with store.database.read() as tx:
        calls = tx.llm_calls.list(claim.job_id)
    assert [call.number for call in calls] == list(range(1, 17))
