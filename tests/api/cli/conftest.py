"""Fixtures of the command line's tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from api.cli.main import main
from api.server import service_in_thread
from store import Settings, Store, open_store


@dataclass(frozen=True)
class Ran:
    """What a command printed and exited with."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(
    tmp_path: Path,
    build_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Runs `pkforge ARGUMENTS` in this process, in an installation of its own."""
    monkeypatch.setenv("PKFORGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PKFORGE_BUILD_CACHE", str(build_cache))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["pkforge", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            main()
        captured = capsys.readouterr()
        assert isinstance(exited.value.code, int)
        return Ran(exited.value.code, captured.out, captured.err)

    return run


@dataclass(frozen=True)
class Served:
    """A running service, and its store."""

    url: str
    store: Store


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A real service on a free port that runs no jobs; `PKFORGE_URL` names it."""
    settings = Settings(home=tmp_path / "home", port=0)
    with service_in_thread(settings, work=False) as url, open_store(settings) as store:
        monkeypatch.setenv("PKFORGE_URL", url)
        yield Served(url, store)
