"""Fixtures shared by all tests: real servers, and an empty store on each kind of database.

They import what they need when they are used: the tests of what runs beside a GPU also pass where
only numpy, torch and pytest are installed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from store import Settings, Store
    from tests.services import Postgres

NO_ENGINE = "unix:///nonexistent/docker.sock"


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own PKFORGE_* variables do not reach the tests."""
    for name in list(os.environ):
        if name.startswith("PKFORGE_"):
            monkeypatch.delenv(name)
    # Tests name the engine that they want; one that happens to run here changes nothing.
    monkeypatch.setattr("sandbox.isolation.engine.DEFAULT_HOST", NO_ENGINE)
    monkeypatch.setenv("PKFORGE_DOCKER_HOST", NO_ENGINE)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL server, started at the first use."""
    from store import Database
    from tests.services import postgres_server

    def migrate(url: str) -> None:
        with closing(Database(url)) as database:
            database.migrate()

    with postgres_server() as server:
        server.prepare_template(migrate)
        yield server


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A real Redis server, started at the first use."""
    from tests.services import redis_server

    with redis_server() as url:
        yield url


@pytest.fixture(scope="session")
def docker_host() -> Iterator[str]:
    """The address of a real Docker engine, started at the first use."""
    from tests.docker_engine import NoEngine, docker_engine

    with contextlib.ExitStack() as stack:
        try:
            host = stack.enter_context(docker_engine())
        except NoEngine as error:
            if os.geteuid() == 0:
                raise
            pytest.skip(str(error))
        yield host


@pytest.fixture
def empty_redis(redis_url: str) -> str:
    """The URL of the Redis server, emptied."""
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    return redis_url


@pytest.fixture(params=["sqlite", "postgresql"])
def blank_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without any table, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'blank.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.create_database(migrated=False)


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Settings of an installation in a folder of its own, on each kind of database."""
    from store import Settings

    if request.param == "sqlite":
        return Settings(home=tmp_path)
    server: Postgres = request.getfixturevalue("postgres")
    return Settings(home=tmp_path, database_url=server.create_database(migrated=True))


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    """An empty store of the current schema, on each kind of database."""
    from store import open_store

    with open_store(settings, migrate=True) as store:
        yield store


@pytest.fixture
def sqlite_settings(tmp_path: Path) -> Settings:
    """Settings of an installation in a folder of its own, on SQLite."""
    from store import Settings

    return Settings(home=tmp_path)


@pytest.fixture
def sqlite_store(sqlite_settings: Settings) -> Iterator[Store]:
    """An empty store of the current schema, on SQLite."""
    from store import open_store

    with open_store(sqlite_settings, migrate=True) as store:
        yield store
