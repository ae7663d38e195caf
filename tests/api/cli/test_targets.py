"""`pkforge target ...` against a real service."""

from __future__ import annotations

import json

from tests.api.cli.conftest import Run, Served


def test_targets_are_listed(run: Run, served: Served) -> None:
    ran = run("target", "list")
    assert ran.code == 0
    assert "sim:h200x4" in ran.out
    assert "simulated" in ran.out
    assert [item["name"] for item in json.loads(run("target", "list", "--json").out)]


def test_a_target_shows_its_sheet(run: Run, served: Served) -> None:
    ran = run("target", "show", "sim:h200x4")
    assert ran.code == 0
    assert "sms: 132" in ran.out
    assert json.loads(run("target", "show", "sim:h200x4", "--json").out)["sheet"]["chip"]


def test_an_unknown_target_is_not_found(run: Run, served: Served) -> None:
    ran = run("target", "show", "sim:h100x9")
    assert (ran.code, ran.out) == (3, "")
    assert "sim:h200x4" in ran.err
