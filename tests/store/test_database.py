"""Schema and transactions: one schema on both databases, migrated once, nothing half-written."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text
from sqlalchemy.exc import StatementError

from store import Database, Settings, Store, open_store
from store.errors import DatabaseUnavailableError, SchemaError
from store.models import Base
from tests.store import examples, racing

RELEASED = sorted((Path(__file__).parent / "databases").glob("*.db"))


@pytest.fixture
def blank(blank_database_url: str) -> Iterator[Database]:
    with closing(Database(blank_database_url)) as database:
        yield database


def test_migrations_make_exactly_the_models_tables(blank: Database) -> None:
    assert not blank.at_head()
    blank.migrate()
    assert blank.at_head()
    with blank.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_migrating_again_changes_nothing(store: Store) -> None:
    job = examples.submit(store)
    store.database.migrate()
    assert examples.job(store, job.id).state == "queued"


@pytest.mark.slow
def test_services_that_start_together_migrate_one_after_another(
    blank_database_url: str, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path, database_url=blank_database_url)
    assert racing.in_processes(racing.migrate, [(settings,)] * 3) == [True] * 3


def test_a_database_of_a_newer_version_is_left_alone(store: Store) -> None:
    with store.database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaError, match=r"9999.*install the version that made it"):
        store.database.migrate()
    trouble = store.database.trouble()
    assert trouble is not None
    assert "not current" in trouble


def test_readiness_needs_a_current_schema(blank: Database) -> None:
    trouble = blank.trouble()
    assert trouble is not None
    assert "restart the service" in trouble
    blank.migrate()
    assert blank.trouble() is None


def test_readiness_names_a_database_that_cannot_be_opened(tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path / 'missing' / 'pkforge.db'}")) as database:
        assert "unable to open" in (database.trouble() or "")


def test_the_password_is_not_shown() -> None:
    with closing(Database("postgresql+psycopg://me:s3cret@host/db")) as database:
        assert "s3cret" not in str(database)


def test_a_transaction_that_fails_writes_nothing(store: Store) -> None:
    def fail() -> None:
        with store.database.write() as tx:
            tx.jobs.create("optimization", examples.SPEC)
            raise RuntimeError("after the insert")

    with pytest.raises(RuntimeError, match="after the insert"):
        fail()
    with store.database.read() as tx:
        assert tx.jobs.counts() == {}


def test_rows_stay_readable_after_their_transaction(store: Store) -> None:
    job = examples.submit(store, seed=7)
    assert job.spec["seed"] == 7
    assert job.created_at.tzinfo is not None
    assert not job.finished


def test_not_a_number_is_refused(store: Store) -> None:
    with pytest.raises((StatementError, ValueError), match="Out of range float"):
        examples.submit(store, target_speedup=float("nan"))


def test_sqlite_waits_for_other_writers_and_survives_a_crash(sqlite_store: Store) -> None:
    expected = {"journal_mode": "wal", "busy_timeout": 30_000, "foreign_keys": 1, "synchronous": 1}
    with sqlite_store.database.engine.connect() as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in expected
        }
    assert found == expected


def test_on_sqlite_a_writer_excludes_another_from_its_first_read_on(sqlite_store: Store) -> None:
    other = sqlite3.connect(sqlite_store.database.engine.url.database or "", timeout=0)
    with closing(other):
        with sqlite_store.database.write() as tx:
            tx.jobs.counts()
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
        with sqlite_store.database.read() as tx:
            tx.jobs.counts()
            other.execute("BEGIN IMMEDIATE")


def test_rows_must_refer_to_something(store: Store) -> None:
    job = examples.submit(store)
    with pytest.raises(Exception, match=r"(?i)foreign key"):
        examples.propose(store, job.id, source_sha256="0" * 64)


@pytest.mark.parametrize("released", RELEASED, ids=[path.stem for path in RELEASED])
def test_databases_of_earlier_versions_are_upgraded(released: Path, tmp_path: Path) -> None:
    """A copy of each released schema, with rows in every table, keeps its rows."""
    shutil.copy(released, tmp_path / "pkforge.db")
    with open_store(Settings(home=tmp_path), migrate=True) as store:
        assert store.database.at_head()
        with store.database.read() as tx:
            (job,) = tx.jobs.page("optimization")
            (summary,) = tx.jobs.summaries([job])
            attempts = tx.attempts.list(job.id)
            timings = tx.attempts.timings(attempts[0].id)
            calls = tx.llm_calls.list(job.id)
            problem = tx.problems.get("my_allreduce")
        assert (job.state, job.stop_reason, job.best_number) == ("succeeded", "exhausted", 1)
        assert (summary.attempts, summary.spent_usd) == (2, 0.25)
        assert [attempt.status for attempt in attempts] == ["correct", None]
        assert [timing.candidate_us for timing in timings] == [400.0]
        assert [call.reply for call in calls] == ["a kernel"]
        assert problem.title == "My all-reduce"
        assert examples.events(store, job.id)[-1] == "job.finished"
        # What it holds can also be worked on.
        examples.claim(store, examples.submit(store).id)


def test_there_is_a_database_of_every_schema() -> None:
    versions = Path(__file__).parents[2] / "migrations" / "versions"
    assert [path.stem for path in RELEASED] == [
        path.stem.split("_")[0] for path in sorted(versions.glob("[0-9]*.py"))
    ]


def test_a_database_that_does_not_answer_is_a_typed_error(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path / 'missing' / 'x.db'}", "postgresql+psycopg://me@127.0.0.1:1/x"]
    for url in urls:
        with (
            closing(Database(url)) as database,
            pytest.raises(DatabaseUnavailableError, match="does not answer"),
            database.write() as tx,
        ):
            tx.jobs.counts()
