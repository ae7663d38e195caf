"""The command itself: starts fast, explains itself, never exits with a code it does not mean."""

from __future__ import annotations

import subprocess
import sys

import pytest

from api.cli import main as module
from tests.api.cli.conftest import Run

HEAVY = (
    "torch",
    "numpy",
    "httpx",
    "fastapi",
    "pydantic",
    "sqlalchemy",
    "rich",
    "optuna",
    "litellm",
)


def test_starting_up_imports_nothing_heavy() -> None:
    """Commands import what they need when they run: `pkforge --help` must not wait for torch."""
    code = f"import sys, api.cli.main; print([m for m in {HEAVY!r} if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_help_names_the_commands_and_exit_codes(run: Run) -> None:
    ran = run("--help")
    assert ran.code == 0
    for text in ("serve", "eval", "doctor", "demo", "130 interrupted"):
        assert text in ran.out


def test_the_version_is_printed(run: Run) -> None:
    ran = run("--version")
    assert ran.code == 0
    assert ran.out.startswith("pkforge ")


@pytest.mark.parametrize(
    "arguments", [("nothing",), ("job", "nothing"), ("--no-such-option",), ("job", "list", "x")]
)
def test_a_wrong_command_is_a_usage_error(run: Run, arguments: tuple[str, ...]) -> None:
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err


def test_no_service_says_how_to_start_one(run: Run) -> None:
    ran = run("job", "list", "--url", "http://127.0.0.1:9")
    assert (ran.code, ran.out) == (5, "")
    assert "pkforge serve" in ran.err


@pytest.mark.parametrize("url", ["http://[", "ftp://127.0.0.1", "127.0.0.1:8770", "http://a:b"])
def test_an_address_that_is_none_is_a_usage_error(run: Run, url: str) -> None:
    assert run("job", "list", "--url", url).code == 2


def test_a_bad_setting_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PKFORGE_PORT", "many")
    ran = run("job", "list")
    assert ran.code == 2
    assert "PKFORGE_PORT" in ran.err


def test_a_fault_of_the_program_is_not_a_verdict(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own exit status for an exception is 1, which here means "not correct"."""

    def fail(**_: str) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(module, "app", fail)
    ran = run("doctor")
    assert ran.code == 5
    assert "a bug" in ran.err
    assert "report it" in ran.err
