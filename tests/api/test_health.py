"""Liveness looks at nothing; readiness says what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from api import checks
from api.checks import Check
from store import Settings
from tests.api.serving import Api, asgi


@pytest.fixture
def steady(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """An application whose sandbox counts as looked at: the real suite is tested elsewhere."""
    monkeypatch.setattr(checks, "check_isolation", lambda _: _isolation(ok=True))
    with asgi(Settings(home=tmp_path / "home")) as api:
        yield api


def _isolation(*, ok: bool) -> Check:
    return Check("isolation", ok, "looked at", None if ok else "install bubblewrap")


def test_the_process_is_alive_whatever_is_missing(steady: Api) -> None:
    steady.store.database.close()
    response = steady.get("/healthz")
    assert (response.status_code, response.json()["status"]) == (200, "ok")


def test_a_complete_service_is_ready(steady: Api) -> None:
    response = steady.get("/readyz")
    assert response.status_code == 200, response.text
    body = response.json()
    assert (body["ready"], body["failed"]) == (True, [])
    assert [check["name"] for check in body["checks"]] == [
        "database",
        "artifacts",
        "disk",
        "isolation",
    ]


def test_a_full_disk_is_named(steady: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LEAST_FREE_BYTES", 1 << 60)
    response = steady.get("/readyz")
    assert (response.status_code, response.json()["failed"]) == (503, ["disk"])
    [disk] = [check for check in response.json()["checks"] if check["name"] == "disk"]
    assert "PKFORGE_HOME" in disk["fix"]


def test_a_lost_artifact_folder_is_named(steady: Api) -> None:
    root = steady.store.artifacts.root
    root.rmdir()
    root.write_text("a file in its place")
    response = steady.get("/readyz")
    assert (response.status_code, response.json()["failed"]) == (503, ["artifacts"])


def test_a_stale_database_is_named(steady: Api) -> None:
    with steady.store.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'older'")
    response = steady.get("/readyz")
    assert (response.status_code, response.json()["failed"]) == (503, ["database"])


def test_a_missing_sandbox_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "check_isolation", lambda _: _isolation(ok=False))
    with asgi(Settings(home=tmp_path)) as api:
        response = api.get("/readyz")
    assert (response.status_code, response.json()["failed"]) == (503, ["isolation"])


def test_with_a_broker_the_sandbox_is_the_workers_matter(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, broker_url="redis://127.0.0.1:1/0")
    with asgi(settings) as api:
        body = api.get("/readyz").json()
    assert "isolation" not in [check["name"] for check in body["checks"]]


@pytest.mark.slow
def test_the_real_sandbox_is_looked_at(tmp_path: Path) -> None:
    with asgi(Settings(home=tmp_path)) as api:
        [isolation] = [
            check for check in api.get("/readyz").json()["checks"] if check["name"] == "isolation"
        ]
    assert isolation["ok"], isolation
    assert "bubblewrap" in isolation["detail"]
