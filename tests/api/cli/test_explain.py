"""`pkforge explain`: a stored verdict as a person reads it."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.api.cli.conftest import Run
from tests.pk_runtime.test_report import REPORT
from tests.sandbox.test_verdict import TIMING, VERDICT

DETAIL = {"report": REPORT.to_json(), "baseline": "modelled"}
GOOD = replace(VERDICT, timings=(replace(TIMING, detail=DETAIL),))


def written(tmp_path: Path, document: Any) -> str:
    (tmp_path / "verdict.json").write_text(json.dumps(document))
    return "verdict.json"


def test_a_verdict_with_a_report_is_told_in_full(run: Run, tmp_path: Path) -> None:
    ran = run("explain", written(tmp_path, GOOD.to_json()))
    assert (ran.code, ran.err) == (0, "")
    for words in ("correct", "m1 on sim:h200x4: 425.0 us simulated", "gap 147.0 us", "taxes",
                  "stages=4: raise to 5 or 6", "baseline: modelled"):  # fmt: skip
        assert words in ran.out
    assert len(ran.out.splitlines()) <= 60


def test_stdin_is_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(GOOD.to_json())))
    ran = run("explain", "-")
    assert (ran.code, ran.err) == (0, "")
    assert "gap 147.0 us" in ran.out


def test_a_verdict_of_an_older_version_is_still_readable(run: Run, tmp_path: Path) -> None:
    old = replace(TIMING, detail={"bottleneck": {"name": "nvlink", "why": "links are busy 92%"}})
    ran = run("explain", written(tmp_path, replace(VERDICT, timings=(old,)).to_json()))
    assert ran.code == 0
    assert "bottleneck at m1: nvlink. links are busy 92%" in ran.out


def test_a_failure_is_explained_and_is_no_failure_of_the_command(run: Run, tmp_path: Path) -> None:
    evidence = {"summary": "stuck \x1b[2J", "kind": "order", "waits": [
        {"rank": 2, "block": 5, "role": "storer", "signal": "ready", "slot": 3}]}  # fmt: skip
    failed = replace(VERDICT, status="deadlock", stage="check", timings=(), evidence=evidence)
    ran = run("explain", written(tmp_path, failed.to_json()))
    assert ran.code == 0
    for words in ("deadlock", "stuck \\x1b[2J", "storer", "kind: order"):
        assert words in ran.out
    assert "\x1b" not in ran.out


@pytest.mark.parametrize(
    ("document", "said"),
    [([], "not a verdict"), ({"status": "correct"}, "not a verdict"),
     (VERDICT.to_json() | {"status": "great"}, "great"),
     (VERDICT.to_json() | {"timings": 3}, "timings")],
)  # fmt: skip
def test_what_is_no_verdict_is_a_usage_error(
    run: Run, tmp_path: Path, document: Any, said: str
) -> None:
    ran = run("explain", written(tmp_path, document))
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert "pkforge eval --json" in ran.err


def test_other_text_and_missing_files(run: Run, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    assert run("explain", "text").code == 2
    assert run("explain", "nowhere.json").code == 3
