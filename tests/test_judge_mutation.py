"""The mutations of the judge: each edits one place that exists, and is caught by its own suite."""

from pathlib import Path

import pytest

from benchmarks.judge_mutation.__main__ import Result, examine_all, table
from benchmarks.judge_mutation.edits import EDITS, SUITES, Edit

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.broken)
def test_each_edit_changes_one_place(edit: Edit) -> None:
    text = (ROOT / edit.file).read_text(encoding="utf-8")
    assert text.count(edit.old) == 1
    compile(text.replace(edit.old, edit.new), edit.file, "exec")
    assert edit.suite in SUITES


@pytest.mark.slow
def test_a_broken_check_is_noticed_and_an_unbroken_one_is_not(tmp_path: Path) -> None:
    zero = next(edit for edit in EDITS if edit.broken == "a time may be zero or negative")
    nothing = Edit("nothing", "reports", zero.file, "", "")
    caught, whole = examine_all([zero, nothing], tmp_path, jobs=1, alone=True)
    assert caught.caught_by == "reports: a time of 0"
    assert whole.caught_by is None


def test_the_table_counts_what_survives() -> None:
    edit = EDITS[0]
    text = table([Result(edit, "rules: a|b", 1.0), Result(edit, None, 1.0)])
    assert "a\\|b" in text
    assert "**nothing**" in text
    assert text.endswith("2 mutations, 1 survived.")
