"""Columns: times keep their zone, text from outside can be stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError, StatementError

from store import Store
from store.models import Job
from tests.store import examples


def test_times_come_back_in_utc(store: Store) -> None:
    job = examples.submit(store)
    noon = datetime(2026, 3, 29, 12, 30, 0, 123456, tzinfo=timezone(timedelta(hours=5)))
    with store.database.engine.begin() as connection:
        connection.execute(update(Job).values(started_at=noon))
        stored = connection.execute(select(Job.started_at).where(Job.id == job.id)).scalar_one()
        later = connection.execute(select(Job.id).where(Job.started_at > noon)).all()
    assert stored == noon
    assert stored.tzinfo is UTC
    assert later == []


def test_a_time_without_zone_is_refused(store: Store) -> None:
    examples.submit(store)
    with (
        store.database.engine.begin() as connection,
        pytest.raises(StatementError, match="without zone"),
    ):
        connection.execute(update(Job).values(started_at=datetime(2026, 1, 1)))  # noqa: DTZ001


def test_text_that_databases_refuse_is_stored_readably(store: Store) -> None:
    job = examples.submit(store)
    attempt = examples.propose(store, job.id, hypothesis="a\0b\ud800c", knobs={"x\0": 1})
    with store.database.read() as tx:
        stored = tx.attempts.get(job.id, attempt.number)
    assert stored.hypothesis == "a\N{REPLACEMENT CHARACTER}b?c"
    assert stored.knobs == {"x\0": 1}


def test_unknown_states_are_refused(store: Store) -> None:
    examples.submit(store)
    with (
        store.database.engine.begin() as connection,
        pytest.raises(IntegrityError, match="ck_job_state"),
    ):
        connection.execute(update(Job).values(state="paused"))
