"""Fixtures of the API's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from store import Settings
from tests.api.serving import Api, asgi


@pytest.fixture(scope="session")
def build_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of compiled code for all: the simulator's engine takes seconds to compile."""
    return tmp_path_factory.mktemp("build-cache")


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """Commands send logs to the `sys.stderr` of their test, which is closed afterwards."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """The application over ASGI on an empty store; nothing runs its jobs."""
    with asgi(Settings(home=tmp_path / "home")) as api:
        yield api
