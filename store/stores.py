"""The database and the artifacts of one installation, opened together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from store.artifacts import Artifacts
from store.database import Database
from store.settings import Settings


@dataclass(frozen=True)
class Store:
    """Where everything is kept. Safe to share between threads, not between processes."""

    database: Database
    artifacts: Artifacts


@contextmanager
def open_store(settings: Settings, *, migrate: bool = False) -> Iterator[Store]:
    """Open the store of `settings`, and close its connections at the end.

    A service opens it with `migrate=True`; the processes it starts do not migrate.
    """
    settings.prepare()
    database = Database(settings.database_url)
    try:
        if migrate:
            database.migrate()
        yield Store(database, Artifacts(settings.artifacts))
    finally:
        database.close()
