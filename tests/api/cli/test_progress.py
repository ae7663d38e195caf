"""A job as its events tell it."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from api.cli.client import Event
from api.cli.progress import JobProgress, attempts_table, plain_line, shown

STORY: list[tuple[str, dict[str, Any]]] = [
    ("job.queued", {}),
    ("job.started", {}),
    ("attempt.proposed", {"number": 1, "parent": None, "knobs": {}, "hypothesis": "shipped"}),
    ("attempt.stage", {"number": 1, "stage": "check"}),
    (
        "attempt.judged",
        {
            "number": 1,
            "status": "correct",
            "candidate_us": 1234.5,
            "kind": "simulated",
            "speedup": 1.25,
            "bottleneck": "nvlink",
        },
    ),
    ("best.updated", {"number": 1, "speedup": 1.25}),
    ("llm.call", {"usd": 0.25}),
    ("attempt.proposed", {"number": 2, "parent": 1, "knobs": {"stages": 4}, "phase": "confirm"}),
    ("attempt.judged", {"number": 2, "status": "deadlock", "candidate_us": None}),
    ("something.new", {"number": 99}),
    ("job.finished", {"status": "succeeded", "stop_reason": "plateaued"}),
]
EVENTS = [
    Event(seq, type, "2026-01-01T00:00:00Z", payload)
    for seq, (type, payload) in enumerate(STORY, start=1)
]


def told(events: list[Event]) -> tuple[JobProgress, list[str]]:
    progress = JobProgress("job_1")
    lines = []
    for event in events:
        progress.apply(event)
        lines.append(plain_line(progress, event))
    return progress, [line for line in lines if line is not None]


def test_the_rows_hold_what_was_told() -> None:
    progress, _ = told(EVENTS)
    assert [(row.number, row.parent, row.status) for row in progress.rows.values()] == [
        (1, None, "correct"),
        (2, 1, "deadlock"),
    ]
    assert (progress.best, progress.usd, progress.state) == (1, 0.25, "succeeded")


def test_plain_lines_say_status_time_kind_and_bottleneck() -> None:
    _, lines = told(EVENTS)
    assert "attempt 1 (search): correct, 1234 us simulated, 1.250x baseline, bottleneck nvlink, " \
        "knobs defaults" in lines  # fmt: skip
    assert "attempt 2 (confirm): deadlock, knobs stages=4" in lines
    assert lines[-1].startswith("job_1: succeeded (plateaued), 2 attempts, 0.25 USD; best 1.250x")


def drawn(progress: JobProgress, width: int = 80) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(attempts_table(list(progress.rows.values()), progress.best))
    return captured.get()


def test_a_pending_attempt_shows_its_stage() -> None:
    progress, _ = told(EVENTS[:4])
    assert "check" in drawn(progress)


def test_the_table_fits_80_columns_and_cuts_nothing() -> None:
    progress, _ = told(EVENTS)
    progress.rows[2].knobs = {f"knob_{number}": number for number in range(9)}
    text = drawn(progress)
    assert "\u2026" not in text
    for part in ("1 *", "1234 us", "1.250x", "nvlink", "knob_8=8", "(simulated)", "deadlock, full"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 80


def test_replayed_and_partial_events_do_no_harm() -> None:
    progress, _ = told([*EVENTS[4:6], *EVENTS, *EVENTS[3:]])
    assert len(progress.rows) == 2


def test_without_a_terminal_progress_is_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with shown(JobProgress("job_1")) as feed:
        for event in EVENTS:
            feed(event)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "\x1b" not in captured.err
    assert "attempt 1 (search): correct" in captured.err


def test_on_a_terminal_progress_is_live(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "api.cli.progress.stderr",
        lambda: Console(stderr=True, force_terminal=True, width=160, height=30),
    )
    with shown(JobProgress("job_1")) as feed:
        for event in EVENTS:
            feed(event)
    assert "deadlock" in capsys.readouterr().err
