"""`pkforge doctor`: what is missing is named, with the fix."""

from __future__ import annotations

import json

import pytest

from api import checks
from api.checks import Check
from tests.api.cli.conftest import Run


@pytest.mark.slow
def test_a_complete_machine_passes(run: Run) -> None:
    ran = run("doctor")
    assert ran.code == 0, ran.out
    assert "optional docker" in ran.out
    assert "no Docker engine at" in ran.out
    for name in (
        "torch",
        "g++",
        "bubblewrap",
        "namespaces",
        "isolation",
        "nvcc",
        "database",
        "disk",
    ):
        assert name in ran.out


@pytest.fixture
def fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandbox counts as looked at: its suite takes seconds and has its own tests."""
    monkeypatch.setattr(checks, "check_backends", lambda _: [Check("isolation", True, "")])


@pytest.mark.usefixtures("fine")
def test_a_missing_compiler_is_named_with_its_fix(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_PATH", "/nowhere")
    ran = run("doctor")
    assert ran.code == 1
    assert "missing  g++" in ran.out
    assert "apt-get install g++" in ran.out
    # nvcc is for GPUs only: its absence is told and accepted.
    assert "optional nvcc" in ran.out


@pytest.mark.usefixtures("fine")
def test_json_holds_every_check(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LEAST_FREE_BYTES", 1 << 60)
    ran = run("doctor", "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["ready"]) == (1, False)
    [disk] = [check for check in document["checks"] if check["name"] == "disk"]
    assert not disk["ok"]
    assert disk["fix"]


def test_no_isolation_is_said_loudly(run: Run) -> None:
    ran = run("doctor", "--no-isolation")
    assert "WITHOUT a sandbox" in ran.out


@pytest.mark.usefixtures("fine")
def test_a_database_that_does_not_answer_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql://user:secret@127.0.0.1:9/none"
    monkeypatch.setenv("PKFORGE_DATABASE_URL", url)
    ran = run("doctor")
    assert ran.code == 1
    assert "missing  database" in ran.out
    assert "secret" not in ran.out
