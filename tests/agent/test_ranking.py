"""Who leads, and who may be the result."""

from __future__ import annotations

from agent.ranking import best_verified, judged_once, leaders
from tests.agent.history import attempt, searched


def test_leaders_are_correct_and_fastest_first() -> None:
    assert [a.number for a in leaders(searched(1.0, "race", 1.4, 1.2, "infra_error"))] == [3, 4, 1]


def test_ties_go_to_the_earlier_attempt() -> None:
    assert [a.number for a in leaders(searched(1.2, 1.2))] == [1, 2]


def test_a_full_verdict_overrules_a_quick_one() -> None:
    history = searched(1.0, 2.0)
    history.append(attempt(3, "deadlock", candidate=history[1].candidate, phase="confirm"))
    assert [a.number for a in leaders(history)] == [1]
    history[-1] = attempt(3, "infra_error", candidate=history[1].candidate, phase="confirm")
    assert [a.number for a in leaders(history)] == [2, 1], "infrastructure says nothing"


def test_only_a_full_correct_verdict_is_a_result() -> None:
    history = searched(1.0, 2.0)
    assert best_verified(history) is None
    history.append(attempt(3, 1.9, candidate=history[1].candidate, phase="confirm"))
    history.append(attempt(4, 1.0, candidate=history[0].candidate, phase="confirm"))
    best = best_verified(history)
    assert best is not None
    assert best.number == 3


def test_infra_errors_judge_nothing() -> None:
    history = searched("infra_error", 1.0)
    assert [a.number for a in judged_once(history, "search").values()] == [2]
