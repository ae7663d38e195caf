"""The plateau rule on histories written out by hand."""

from __future__ import annotations

from dataclasses import replace

from agent.plateau import FLAT_LIMIT, SIGMA, WINDOW, flat_windows
from agent.records import AttemptRecord
from tests.agent.history import attempt, searched


def test_one_flat_window_needs_a_full_window_after_the_first_correct_attempt() -> None:
    assert flat_windows(searched(*[1.0] * WINDOW)) == 0
    assert flat_windows(searched(*[1.0] * (WINDOW + 1))) == 1
    assert flat_windows(searched(*["build_failed"] * 20)) == 0
    assert flat_windows(searched(*["deadlock"] * 9, *[1.0] * WINDOW)) == 0


def test_failing_attempts_are_steps_once_there_is_something_to_beat() -> None:
    assert flat_windows(searched(1.0, *["crashed"] * WINDOW)) == 1


def test_infra_errors_are_nobodys_steps() -> None:
    assert flat_windows(searched(1.0, *["infra_error"] * (2 * WINDOW))) == 0


def test_it_is_called_after_flat_windows_in_a_row() -> None:
    assert flat_windows(searched(*[1.0] * (1 + WINDOW * FLAT_LIMIT))) == FLAT_LIMIT
    assert flat_windows(searched(*[1.0] * (1 + WINDOW * 9))) == FLAT_LIMIT


def test_a_gain_forgives_the_flat_windows_before_it() -> None:
    flat = [1.0] * (1 + WINDOW * (FLAT_LIMIT - 1))
    assert flat_windows(searched(*flat)) == FLAT_LIMIT - 1
    assert flat_windows(searched(*flat, 1.1)) == 0
    assert flat_windows(searched(*flat, 1.01)) == FLAT_LIMIT - 1, "too small a gain"


def test_small_gains_add_up_within_a_window() -> None:
    creeping = [1.0 * 1.004**step for step in range(40)]
    assert flat_windows(searched(*creeping)) == 0


def test_measured_gains_must_rise_above_the_noise() -> None:
    gain = 1.0 + 1.5 * SIGMA["measured"]
    simulated = searched(1.0, *[gain] * WINDOW)
    measured = [_measured(attempt) for attempt in simulated]
    assert flat_windows(simulated) == 0
    assert flat_windows(measured) == 1


def test_a_refuted_leader_is_no_gain() -> None:
    history = searched(1.0, 9.0, *[1.0] * (WINDOW - 1))
    assert flat_windows(history) == 0
    refuted = attempt(
        len(history) + 1, "race", candidate=history[1].candidate, phase="confirm", parent=2
    )
    assert flat_windows([*history, refuted]) == 1


def _measured(record: AttemptRecord) -> AttemptRecord:
    assert record.verdict is not None
    timings = tuple(replace(timing, kind="measured") for timing in record.verdict.timings)
    return replace(record, verdict=replace(record.verdict, timings=timings))
