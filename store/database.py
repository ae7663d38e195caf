"""The engine, transactions, and the schema's version. SQLite by default, PostgreSQL by URL."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from store.attempts import AttemptRepository
from store.errors import DatabaseUnavailableError, SchemaError
from store.events import EventRepository
from store.jobs import JobRepository
from store.leases import LeaseRepository
from store.llm_calls import LlmCallRepository
from store.problems import ArtifactRepository, ProblemRepository

_MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"
_MIGRATION_LOCK = 0x706B666F726765
_RETRY_S = 0.02
_BUSY_TIMEOUT_MS = 30_000
_CONNECT_TIMEOUT_S = 10
_WRITES = "pkforge_writes"


class Transaction:
    """The repositories of one transaction. It commits when its `with` block ends well."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @cached_property
    def jobs(self) -> JobRepository:
        """Jobs as users see them."""
        return JobRepository(self._session)

    @cached_property
    def leases(self) -> LeaseRepository:
        """Who runs which job."""
        return LeaseRepository(self._session)

    @cached_property
    def attempts(self) -> AttemptRepository:
        """Attempts, verdicts, timings."""
        return AttemptRepository(self._session)

    @cached_property
    def llm_calls(self) -> LlmCallRepository:
        """The ledger of model calls."""
        return LlmCallRepository(self._session)

    @cached_property
    def events(self) -> EventRepository:
        """The log of each job."""
        return EventRepository(self._session)

    @cached_property
    def problems(self) -> ProblemRepository:
        """Problems that users added."""
        return ProblemRepository(self._session)

    @cached_property
    def artifacts(self) -> ArtifactRepository:
        """The rows of artifacts."""
        return ArtifactRepository(self._session)


class Database:
    """Short transactions on one database; safe to share between threads, not between processes.

    Rows that a transaction returns stay readable after it ends.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = _create_engine(url)
        self._readers = sessionmaker(self.engine, expire_on_commit=False)
        self._writers = sessionmaker(
            self.engine.execution_options(**{_WRITES: True}), expire_on_commit=False
        )

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """A transaction that only reads. Raises DatabaseUnavailableError."""
        with self._unavailable_is_told(), self._readers.begin() as session:
            yield Transaction(session)

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """A transaction that may read and then write; on SQLite it takes the write lock at once.

        Keep it short: no model call, evaluation or file transfer inside. Raises
        DatabaseUnavailableError.
        """
        with self._unavailable_is_told(), self._writers.begin() as session:
            yield Transaction(session)

    def close(self) -> None:
        """Close the pooled connections."""
        self.engine.dispose()

    def migrate(self, revision: str = "head") -> None:
        """Bring the schema to `revision`. Processes that start together do it one after another.

        Raises SchemaError if a newer version of the program has been at this database.
        """
        with _alone(self.engine) as connection:
            current = MigrationContext.configure(connection).get_current_revision()
            script = ScriptDirectory.from_config(_alembic())
            known = {item.revision for item in script.walk_revisions()}
            if current is not None and current not in known:
                raise SchemaError(
                    f"the database {self} has schema {current}, which this version does not know: "
                    "install the version that made it, or restore a backup"
                )
            command.upgrade(_alembic(connection), revision)

    def at_head(self) -> bool:
        """Whether the schema is the one this version works with."""
        with self.engine.connect() as connection:
            current = MigrationContext.configure(connection).get_current_revision()
        return current == ScriptDirectory.from_config(_alembic()).get_current_head()

    def trouble(self) -> str | None:
        """Why jobs cannot be stored right now, or None; for readiness checks."""
        try:
            if not self.at_head():
                return f"the schema of {self} is not current: restart the service to migrate it"
            with self._writers.begin() as session:
                session.execute(text("UPDATE job SET last_seq = last_seq WHERE 1 = 0"))
        except SQLAlchemyError as error:
            return f"{self} cannot be written: {error.__class__.__name__}: {_first_line(error)}"
        return None

    @contextmanager
    def _unavailable_is_told(self) -> Iterator[None]:
        try:
            yield
        except (OperationalError, InterfaceError) as error:
            raise DatabaseUnavailableError(
                f"the database {self} does not answer: {_first_line(error)}"
            ) from error

    def __str__(self) -> str:
        """The URL without its password."""
        return self.engine.url.render_as_string(hide_password=True)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def _create_engine(url: str) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        # Connections are open files here: no request has to wait for a free one.
        engine = create_engine(parsed, json_serializer=_json, max_overflow=-1)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    patience = {"connect_timeout": _CONNECT_TIMEOUT_S}
    return create_engine(parsed, json_serializer=_json, pool_pre_ping=True, connect_args=patience)


def _json(value: Any) -> str:
    # NaN is no JSON: it would be stored, and refused or misread elsewhere.
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # The driver must not open transactions by itself: `_begin_sqlite` does, in the right mode.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
    _use_wal(cursor)
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.close()


def _use_wal(cursor: sqlite3.Cursor) -> None:
    """Of two that open a new file at a time SQLite refuses one at once, whatever its patience."""
    deadline = time.monotonic() + _BUSY_TIMEOUT_MS / 1000
    while cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_S)


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and then wants to write cannot wait for another writer (its
    # snapshot is stale), so it asks for the write lock at once.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def _alone(engine: Engine) -> Iterator[Connection]:
    """A transaction that excludes other migrations; on SQLite with foreign keys off.

    SQLite changes a table by copying and dropping it, which would delete the rows that refer to it.
    """
    writer = engine.execution_options(**{_WRITES: True})
    if engine.dialect.name != "sqlite":
        with writer.begin() as connection:
            lock = text("SELECT pg_advisory_xact_lock(:key)")
            connection.execute(lock, {"key": _MIGRATION_LOCK})
            yield connection
        return
    with writer.connect() as connection:
        driver = connection.connection.driver_connection
        if driver is None:
            raise SchemaError("the connection was closed before the migration")
        driver.execute("PRAGMA foreign_keys = OFF")
        try:
            with connection.begin():
                yield connection
                broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
                if broken:
                    raise SchemaError(f"the migration left rows that refer to nothing: {broken}")
        finally:
            driver.execute("PRAGMA foreign_keys = ON")


def _alembic(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    return config
