"""Attempts: numbered without gaps, one unjudged at a time, judged once."""

from __future__ import annotations

import pytest

from store import Store
from store.errors import AttemptStateError, NotFoundError
from tests.store import examples


def test_attempts_are_numbered_from_one_within_a_job(store: Store) -> None:
    first, second = examples.submit(store), examples.submit(store)
    for job in (first, second):
        for number in (1, 2):
            attempt = examples.propose(store, job.id, parent=number - 1 or None)
            assert attempt.number == number
            examples.judge(store, job.id, number)
    with store.database.read() as tx:
        assert [attempt.parent for attempt in tx.attempts.list(first.id)] == [None, 1]
        assert [attempt.number for attempt in tx.attempts.list(first.id, after=1)] == [2]
        assert [attempt.number for attempt in tx.attempts.list(first.id, limit=1)] == [1]


def test_an_unjudged_attempt_blocks_the_next(store: Store) -> None:
    job = examples.submit(store)
    examples.propose(store, job.id)
    with pytest.raises(AttemptStateError, match=r"attempt 1 .* judge it before the next"):
        examples.propose(store, job.id)
    with store.database.read() as tx:
        pending = tx.attempts.pending(job.id)
    assert pending is not None
    assert (pending.number, pending.status, pending.judged_at) == (1, None, None)


def test_a_verdict_is_stored_whole_and_by_its_timings(store: Store) -> None:
    job = examples.submit(store)
    attempt = examples.propose(store, job.id, predicted_us=450.0, usd=None, tokens_in=12)
    examples.judge(store, job.id, 1, candidate_us=400.0)
    with store.database.read() as tx:
        assert tx.attempts.pending(job.id) is None
        stored = tx.attempts.get(job.id, 1)
        verdict = tx.attempts.verdict(attempt.id)
        (timing,) = tx.attempts.timings(attempt.id)
        assert tx.attempts.verdicts(job.id)[1] is verdict
    assert (stored.status, stored.objective_us, stored.speedup) == ("correct", 400.0, 2.5)
    assert (stored.predicted_us, stored.usd, stored.tokens_in) == (450.0, None, 12)
    assert stored.knobs == {"stages": 4}
    assert verdict is not None
    assert verdict.body == examples.verdict(candidate_us=400.0)
    assert (timing.shape, timing.kind, timing.candidate_us) == ("default", "simulated", 400.0)
    assert (timing.roofline_fraction, timing.bottleneck) == (0.625, "nvlink")


def test_a_failed_attempt_has_no_timings(store: Store) -> None:
    job = examples.submit(store)
    attempt = examples.propose(store, job.id)
    with store.database.write() as tx:
        tx.attempts.judged(
            job.id,
            1,
            examples.verdict("deadlock"),
            objective_us=None,
            speedup=None,
            kind=None,
            bottleneck=None,
        )
    with store.database.read() as tx:
        assert tx.attempts.get(job.id, 1).status == "deadlock"
        assert tx.attempts.timings(attempt.id) == []


def test_an_attempt_is_judged_once(store: Store) -> None:
    job = examples.submit(store)
    examples.propose(store, job.id)
    examples.judge(store, job.id, 1)
    with pytest.raises(AttemptStateError, match="judged already"):
        examples.judge(store, job.id, 1, candidate_us=1.0)
    with store.database.read() as tx:
        assert tx.attempts.get(job.id, 1).objective_us == 500.0


def test_an_unknown_attempt_is_named(store: Store) -> None:
    job = examples.submit(store)
    with store.database.read() as tx, pytest.raises(NotFoundError, match=f"{job.id} 7"):
        tx.attempts.get(job.id, 7)
