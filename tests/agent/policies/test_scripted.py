"""Candidates from lists and directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.loop import optimize
from agent.policies.scripted import Scripted, read_script
from agent.spec import JobSpec, SpecError
from tests.agent.analytic import Judge, kernel
from tests.agent.memory_journal import MemoryJournal


def test_a_directory_is_read_in_name_order_with_knobs(tmp_path: Path) -> None:
    (tmp_path / "b.cu").write_text(kernel("second").source)
    (tmp_path / "a.cu").write_text(kernel("first").source)
    (tmp_path / "a.json").write_text('{"stages": 4}')
    (tmp_path / "notes.txt").write_text("not a kernel")
    assert read_script(tmp_path) == (kernel("first", stages=4), kernel("second"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "a.cu: "),
        ("a.json", '{"stages": "4"}', "knobs must map names to integers"),
        ("a.json", "[1]", "knobs must map names to integers"),
    ],
)
def test_unreadable_knobs(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / "a.cu").write_text("x")
    (tmp_path / name).write_text(text)
    with pytest.raises(SpecError, match=message):
        read_script(tmp_path)


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"holds no \.cu file"):
        read_script(tmp_path)
    with pytest.raises(SpecError, match="is not a directory"):
        read_script(tmp_path / "absent")
    (tmp_path / "a.cu").write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match=r"a\.cu: .*utf-8"):
        read_script(tmp_path)
    with pytest.raises(SpecError, match="no candidates"):
        Scripted([])


def test_repeats_are_skipped_and_each_attempt_follows_the_last() -> None:
    spec = JobSpec(problem="allreduce", target="sim:h200x4", policy="scripted:x")
    journal = MemoryJournal()
    script = Scripted([kernel("a"), kernel("b"), kernel("a"), kernel("c")])
    outcome = optimize(spec, script, Judge(), journal, lambda: 0.0)
    assert outcome.stop_reason == "exhausted"
    search = [a for a in journal.stored if a.phase == "search"]
    assert [a.candidate for a in search] == [kernel("a"), kernel("b"), kernel("c")]
    assert [a.parent for a in search] == [None, 1, 2]
