"""The event log: numbers without gaps, in the order in which changes became visible."""

from __future__ import annotations

import itertools
import threading

import pytest

from store import Settings, Store
from store.errors import NotFoundError
from tests.store import examples, racing


def test_events_are_numbered_per_job(store: Store) -> None:
    first, second = examples.submit(store), examples.submit(store)
    with store.database.write() as tx:
        assert tx.events.append(first.id, "best.updated", {"number": 1, "speedup": 1.5}) == 2
        assert tx.events.append(first.id, "plateau.called") == 3
        assert tx.events.append(second.id, "budget.warn") == 2
    with store.database.read() as tx:
        rows = tx.events.after(first.id, 1)
    assert [(row.seq, row.type, row.payload) for row in rows] == [
        (2, "best.updated", {"number": 1, "speedup": 1.5}),
        (3, "plateau.called", {}),
    ]
    assert examples.job(store, first.id).last_seq == 3


def test_a_page_of_events_can_be_continued(store: Store) -> None:
    job = examples.submit(store)
    with store.database.write() as tx:
        for _ in range(9):
            tx.events.append(job.id, "note")
    with store.database.read() as tx:
        page = tx.events.after(job.id, 0, limit=4)
        rest = tx.events.after(job.id, page[-1].seq)
    assert [row.seq for row in [*page, *rest]] == list(range(1, 11))


def test_an_event_of_a_failed_change_is_not_written(store: Store) -> None:
    job = examples.submit(store)

    def fail() -> None:
        with store.database.write() as tx:
            tx.events.append(job.id, "note")
            raise RuntimeError("rolled back")

    with pytest.raises(RuntimeError):
        fail()
    assert examples.events(store, job.id) == ["job.queued"]


def test_events_need_a_job(store: Store) -> None:
    with store.database.write() as tx, pytest.raises(NotFoundError, match="no job 'job_x'"):
        tx.events.append("job_x", "note")


@pytest.mark.slow
def test_processes_that_write_at_once_share_one_numbering(settings: Settings, store: Store) -> None:
    job = examples.submit(store)
    calls = [(settings, job.id, tag, 40) for tag in range(4)]
    numbers = racing.in_processes(racing.append_events, calls)
    assert sorted(itertools.chain(*numbers)) == list(range(2, 162))
    with store.database.read() as tx:
        rows = tx.events.after(job.id)
    for tag in range(4):
        own = [row.payload["index"] for row in rows if row.payload.get("tag") == tag]
        assert own == list(range(40))


def test_a_reader_never_sees_a_later_event_before_an_earlier_one(store: Store) -> None:
    """The second writer cannot commit while the first, which has the lower number, is open."""
    job = examples.submit(store)
    order: list[int] = []
    appended = threading.Event()

    def second() -> None:
        appended.wait(10)
        with store.database.write() as tx:
            seq = tx.events.append(job.id, "note")
        order.append(seq)

    thread = threading.Thread(target=second)
    thread.start()
    with store.database.write() as tx:
        first = tx.events.append(job.id, "note")
        appended.set()
        thread.join(0.3)
        assert thread.is_alive()
        with store.database.read() as other:
            assert [row.seq for row in other.events.after(job.id)] == [1]
        order.append(first)
    thread.join(10)
    assert order == [2, 3]
