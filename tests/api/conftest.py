"""Fixtures of the API's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store import Settings
from tests.api.serving import Api, asgi


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """The application over ASGI on an empty store; nothing runs its jobs."""
    with asgi(Settings(home=tmp_path / "home")) as api:
        yield api
