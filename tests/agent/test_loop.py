"""The loop, against a journal in memory, the real policies and an analytic judge."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from agent.loop import (
    CONFIRM_AFTER,
    CONFIRM_BEST,
    CONFIRM_TRIES,
    INFRA_ATTEMPTS,
    INFRA_RETRIES,
    Context,
    Outcome,
    PolicyFailedError,
    optimize,
)
from agent.plateau import FLAT_LIMIT, WINDOW
from agent.policies.scripted import Scripted
from agent.policies.tuner import Tuner
from agent.records import Proposal
from agent.spec import Budget, JobSpec
from pk_runtime.candidate import Candidate
from sandbox.verdict import Depth, Status, Verdict
from tests.agent.analytic import Judge, kernel, verdict
from tests.agent.memory_journal import Killed, MemoryJournal


def spec(
    attempts: int = 12,
    *,
    wall_s: float = 3600.0,
    target_speedup: float | None = None,
    seed: int | None = None,
) -> JobSpec:
    return JobSpec(
        problem="gemm_reducescatter",
        target="sim:h200x4",
        budget=Budget(attempts=attempts, wall_s=wall_s),
        start_from=kernel(),
        target_speedup=target_speedup,
        seed=seed,
    )


def ticking(step: float = 0.0) -> Callable[[], float]:
    count = itertools.count()
    return lambda: next(count) * step


def tune(job: JobSpec, judge: Judge, journal: MemoryJournal, step: float = 0.0) -> Outcome:
    return optimize(job, Tuner(job), judge, journal, ticking(step))


def play(
    candidates: list[Candidate], judge: Judge, job: JobSpec | None = None
) -> tuple[Outcome, MemoryJournal]:
    journal = MemoryJournal()
    outcome = optimize(job or spec(), Scripted(candidates), judge, journal, ticking())
    return outcome, journal


def phases(journal: MemoryJournal) -> list[str]:
    return [attempt.phase for attempt in journal.stored]


def test_search_then_confirm_the_best_few_and_the_default() -> None:
    candidates = [kernel(stages=s, super_m=m) for s in (3, 4, 5) for m in (2, 4)]
    outcome, journal = play([kernel(), *candidates], Judge())
    assert outcome.stop_reason == "exhausted"
    assert phases(journal) == ["search"] * 7 + ["confirm"] * (CONFIRM_BEST + 1)
    confirms = [attempt for attempt in journal.stored if attempt.phase == "confirm"]
    assert confirms[-1].parent == 1, "the default is confirmed too, so that the pair is honest"
    assert outcome.best is confirms[0]
    assert outcome.best.candidate == kernel(stages=5, super_m=4)
    assert outcome.best.verified
    assert outcome.best.speedup is not None
    assert outcome.best.speedup > (confirms[-1].speedup or 0)


def test_what_may_become_the_result_is_judged_beside_the_best_so_far() -> None:
    judge = Judge()
    outcome, _ = play([kernel(), kernel(stages=4), kernel(stages=5)], judge)
    asked = list(zip(judge.seen, judge.incumbents, strict=True))
    searched = [best for (_, depth), best in asked if depth == "quick"]
    confirmed = [best for (_, depth), best in asked if depth == "full"]
    assert searched == [None] * 3
    assert confirmed[0] is None, "the first has nothing to beat"
    assert outcome.best is not None
    assert set(confirmed[1:]) == {outcome.best.candidate}


def test_a_leader_that_fails_in_full_is_not_the_result() -> None:
    fast, slow = kernel("fast", stages=5), kernel("slow", stages=4)
    outcome, journal = play([kernel(), fast, slow], Judge(statuses={("fast", "full"): "race"}))
    assert outcome.best is not None
    assert outcome.best.candidate == slow
    assert [a.status for a in journal.stored if a.phase == "confirm"] == [
        "race", "correct", "correct"
    ]  # fmt: skip


def test_no_result_when_nothing_survives_and_confirming_is_bounded() -> None:
    notes = [f"k{i}" for i in range(10)]
    times = {kernel(note).digest(): 900.0 - 50 * i for i, note in enumerate(notes)}
    judge = Judge(lambda c: times[c.digest()], {(note, "full"): "deadlock" for note in notes})
    outcome, journal = play([kernel(note) for note in notes], judge)
    assert outcome.best is None
    assert phases(journal) == ["search"] * 10 + ["confirm"] * (CONFIRM_TRIES + 1)


def test_a_leader_that_stays_unbeaten_is_judged_in_full_meanwhile() -> None:
    """It races: were it found out only at the end, the search would have circled around it."""
    racing = kernel("racing", stages=5, super_m=8)
    others = [kernel("", comm_sms=c) for c in (4, 8, 16, 24, 32)]
    judge = Judge(statuses={("racing", "full"): "race"})
    outcome, journal = play([others[0], racing, *others[1:]], judge)
    assert phases(journal)[: 2 + CONFIRM_AFTER + 1] == ["search"] * (2 + CONFIRM_AFTER) + [
        "confirm"
    ]
    assert journal.stored[2 + CONFIRM_AFTER].candidate == racing
    assert outcome.best is not None
    assert outcome.best.candidate != racing
    assert len(judge.seen) == len(set(judge.seen)), "what was confirmed is not judged again"


def test_attempts_budget_counts_search_only() -> None:
    journal = MemoryJournal()
    outcome = tune(spec(attempts=5), Judge(), journal)
    assert outcome.stop_reason == "budget_attempts"
    assert phases(journal).count("search") == 5
    assert ("budget.warn", {"budget": "attempts", "used": 4, "limit": 5}) in journal.events


def test_wall_budget_counts_earlier_runs_and_still_verifies_the_best() -> None:
    journal = MemoryJournal()
    journal.worked_s = 50.0
    job = spec(attempts=100, wall_s=60.0)
    outcome = tune(job, Judge(), journal, step=1.0)
    assert outcome.stop_reason == "budget_wall"
    assert outcome.best is not None
    assert phases(journal).count("confirm") <= 2, "one leader and the default"


def test_target_is_reached_only_by_a_verified_attempt() -> None:
    liar, honest = kernel("liar", stages=5, super_m=8), kernel("honest", stages=5, super_m=8)
    judge = Judge(statuses={("liar", "full"): "wrong_output"})
    rest = [kernel("rest", stages=4), kernel("rest", stages=2)]
    outcome, journal = play([kernel(), liar, honest, *rest], judge, spec(target_speedup=1.4))
    assert outcome.stop_reason == "target_reached"
    assert outcome.best is not None
    assert outcome.best.candidate == honest
    assert not any(a.candidate in rest for a in journal.stored), "it stops at once"
    assert journal.stored[-1].parent == 1, "and the default is confirmed to compare with"


def test_plateau_stops_after_flat_windows() -> None:
    journal = MemoryJournal()
    outcome = tune(spec(attempts=60), Judge(time=lambda _: 500.0), journal)
    assert outcome.stop_reason == "plateaued"
    assert phases(journal).count("search") == 1 + WINDOW * FLAT_LIMIT
    calls = [payload["flat_windows"] for type, payload in journal.events if "plateau" in type]
    assert calls == [1, 2, 3]


def test_cancel_ends_without_judging_any_more() -> None:
    journal = MemoryJournal()
    journal.cancel_after = 4
    outcome = tune(spec(), Judge(), journal)
    assert outcome.stop_reason == "cancelled"
    assert phases(journal) == ["search"] * 4
    assert outcome.best is None


def test_cancel_while_confirming_keeps_what_is_verified() -> None:
    journal = MemoryJournal()
    journal.cancel_after = 6
    outcome = tune(spec(attempts=5), Judge(), journal)
    assert outcome.stop_reason == "cancelled"
    assert outcome.best is journal.stored[5]


def test_infra_errors_are_retried_and_cost_no_attempt() -> None:
    journal = MemoryJournal()
    answers: Iterator[Status] = itertools.chain(
        ["infra_error"] * INFRA_RETRIES, itertools.repeat("correct")
    )

    def flaky(candidate: Candidate, depth: Depth, _best: Candidate | None) -> Verdict:
        return verdict(candidate, depth, 500.0, next(answers))

    policy = Scripted([kernel(), kernel(stages=4)])
    outcome = optimize(spec(attempts=2), policy, flaky, journal, ticking())
    assert outcome.stop_reason == "budget_attempts"
    assert [a.status for a in journal.stored] == ["correct"] * 4


def test_attempts_that_only_meet_infra_errors_end_the_job() -> None:
    judge = Judge(statuses={("", "quick"): "infra_error"})
    candidates = [kernel(stages=s) for s in (2, 3, 4, 5)]
    outcome, journal = play(candidates, judge)
    assert outcome.stop_reason == "infra"
    assert len(journal.stored) == INFRA_ATTEMPTS
    assert len(judge.seen) == INFRA_ATTEMPTS * (1 + INFRA_RETRIES)


def test_a_policy_that_fails_keeps_what_is_verified() -> None:
    class Failing:
        name = "failing"

        def propose(self, context: Context) -> Proposal | None:
            if context.attempts:
                raise PolicyFailedError("the model service is down")
            return Proposal(candidate=kernel(), hypothesis="start")

    journal = MemoryJournal()
    outcome = optimize(spec(), Failing(), Judge(), journal, ticking())
    assert (outcome.stop_reason, outcome.detail) == ("infra", "the model service is down")
    assert outcome.best is not None


def test_best_updates_are_announced_once_each() -> None:
    candidates = [kernel(), kernel(stages=4), kernel(stages=2), kernel(stages=5)]
    _, journal = play(candidates, Judge())
    best = [(p["number"], p["verified"]) for type, p in journal.events if type == "best.updated"]
    assert best[:3] == [(1, False), (2, False), (4, False)]
    assert best[3:] == [(5, True)], "the first confirmation is the winner's"


@pytest.mark.parametrize("seed", [0, 7])
def test_a_killed_job_goes_on_exactly(seed: int) -> None:
    """Kill the process after every possible write: the result is that of an undisturbed run."""
    job = spec(attempts=6, seed=seed)
    whole = MemoryJournal()
    expected = tune(job, Judge(), whole)
    trail = [(a.number, a.candidate, a.phase, a.parent, a.hypothesis) for a in whole.stored]
    for write in range(1, whole.writes + 1):
        journal, judge = MemoryJournal(), Judge()
        journal.die_after = write
        with pytest.raises(Killed):
            tune(job, judge, journal)
        outcome = tune(job, judge, journal)
        again = [(a.number, a.candidate, a.phase, a.parent, a.hypothesis) for a in journal.stored]
        assert again == trail
        assert outcome.stop_reason == expected.stop_reason
        assert outcome.best is not None
        assert expected.best is not None
        assert outcome.best.number == expected.best.number
        assert len(judge.seen) == len(set(judge.seen)), "nothing stored is judged again"
