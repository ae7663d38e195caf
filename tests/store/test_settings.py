"""Settings: where they come from, what is derived, what a child process gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from store import Settings


def test_everything_lies_in_home_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings()
    home = tmp_path / ".pkforge"
    assert settings.home == home
    assert settings.database_url == f"sqlite:///{home / 'pkforge.db'}"
    assert settings.artifacts == home / "artifacts"
    assert settings.build_cache == home / "build"
    assert settings.embedded


def test_environment_sets_and_arguments_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PKFORGE_HOME", str(tmp_path / "given"))
    monkeypatch.setenv("PKFORGE_PORT", "1234")
    monkeypatch.setenv("PKFORGE_BROKER_URL", "redis://localhost/0")
    settings = Settings(port=99)
    assert (settings.home, settings.port) == (tmp_path / "given", 99)
    assert not settings.embedded


def test_an_empty_variable_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PKFORGE_BROKER_URL", "")
    monkeypatch.setenv("PKFORGE_PORT", "")
    settings = Settings()
    assert settings.broker_url is None
    assert settings.port == 8770


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_postgresql_urls_name_the_installed_driver(scheme: str) -> None:
    settings = Settings(database_url=f"{scheme}://me@host/db")
    assert settings.database_url == "postgresql+psycopg://me@host/db"


def test_a_heartbeat_that_would_lose_the_lease_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"PKFORGE_HEARTBEAT_S.*at most half"):
        Settings(lease_s=10, heartbeat_s=6)


def test_a_child_process_gets_the_same_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PKFORGE_PORT", "1")
    settings = Settings(
        home=tmp_path, port=4321, llm_api_key=SecretStr("s3cret"), allow_no_isolation=True
    )
    environment = settings.environment()
    assert "PATH" in environment
    for name in [name for name in environment if name.startswith("PKFORGE_")]:
        monkeypatch.setenv(name, environment[name])
    assert Settings() == settings


def test_the_key_is_not_shown() -> None:
    assert "s3cret" not in repr(Settings(llm_api_key=SecretStr("s3cret")))


def test_prepare_creates_private_folders(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "a" / "b")
    settings.prepare()
    settings.prepare()
    assert settings.home.stat().st_mode & 0o777 == 0o700
    assert settings.artifacts.is_dir()


def test_every_setting_is_described() -> None:
    missing = [name for name, field in Settings.model_fields.items() if not field.description]
    assert not missing
