"""The tuner on an analytic cost model."""

from __future__ import annotations

import pytest

from agent.loop import Context, Outcome, optimize
from agent.policies.tuner import Tuner
from agent.records import AttemptRecord
from agent.spec import Budget, JobSpec, SpecError
from pk_runtime.candidate import Candidate, resolved_knobs
from pk_runtime.kernels import shipped
from sandbox.verdict import Depth, Verdict
from tests.agent.analytic import Judge, kernel, valley_us, verdict
from tests.agent.history import attempt
from tests.agent.memory_journal import MemoryJournal

TINY = Candidate("pk", {"kernel.cu": '// tiny\nPK_KERNEL(t, knob("a", 0, {0, 1, 2, 3}));'})


def job(start: Candidate | None = None, attempts: int = 40, seed: int = 0) -> JobSpec:
    return JobSpec(
        problem="allreduce",
        target="sim:h200x4",
        budget=Budget(attempts=attempts),
        start_from=start,
        seed=seed,
    )


def run(spec: JobSpec, judge: Judge | None = None) -> tuple[Outcome, list[AttemptRecord]]:
    journal = MemoryJournal()
    outcome = optimize(spec, Tuner(spec), judge or Judge(), journal, lambda: 0.0)
    return outcome, [a for a in journal.stored if a.phase == "search"]


def test_it_starts_from_every_shipped_kernel_as_it_is() -> None:
    spec = job(attempts=4)
    tuner = Tuner(spec)
    kernels = shipped("allreduce")
    history: list[AttemptRecord] = []
    journal = MemoryJournal()
    for expected in kernels:
        proposal = tuner.propose(Context(spec, history, 0, journal))
        assert proposal is not None
        assert proposal.candidate == expected
        assert proposal.parent is None
        record = journal.propose(proposal)
        history.append(journal.judged(record.number, verdict(expected, "quick", 10.0)))
    assert len(history) == len(kernels) > 1


@pytest.mark.parametrize("seed", range(5))
def test_it_finds_a_much_better_point_within_the_default_budget(seed: int) -> None:
    outcome, attempts = run(job(kernel(), seed=seed))
    start_us, best = valley_us(kernel()), outcome.best
    assert best is not None
    assert best.objective_us is not None
    assert attempts[0].objective_us == pytest.approx(start_us)
    assert best.objective_us < 0.65 * start_us
    assert best.objective_us < 1.25 * 400.0, "within 25 % of the optimum among 300 points"


def test_no_point_is_judged_twice_and_the_whole_space_is_the_end() -> None:
    outcome, attempts = run(job(TINY), Judge(time=lambda c: 100.0 + resolved_knobs(c)["a"] ** 2))
    assert outcome.stop_reason == "exhausted"
    assert sorted(resolved_knobs(a.candidate)["a"] for a in attempts) == [0, 1, 2, 3]


def test_failing_points_are_avoided() -> None:
    """Every point with rotate=0 deadlocks: the tuner must learn to leave them alone."""

    def half_deadlocks(candidate: Candidate, depth: Depth, _best: Candidate | None) -> Verdict:
        works = resolved_knobs(candidate)["rotate"] == 1
        return verdict(candidate, depth, valley_us(candidate), "correct" if works else "deadlock")

    spec, journal = job(kernel()), MemoryJournal()
    optimize(spec, Tuner(spec), half_deadlocks, journal, lambda: 0.0)
    late = [a.correct for a in journal.stored if a.phase == "search"][20:]
    assert sum(late) >= 0.6 * len(late), "drawing at random gives half"


def test_hypotheses_say_what_changed_against_which_attempt() -> None:
    _, attempts = run(job(kernel(), attempts=6))
    assert "the start" in attempts[0].hypothesis
    for child in attempts[1:]:
        parent = next(a for a in attempts if a.number == child.parent)
        before, after = resolved_knobs(parent.candidate), resolved_knobs(child.candidate)
        changed = {name for name in before if before[name] != after[name]}
        assert changed
        for name in changed:
            assert f"{name} {before[name]} -> {after[name]}" in child.hypothesis
        assert f"against attempt {parent.number}, which is bound by nvlink" in child.hypothesis


def test_seeds_differ_and_repeat() -> None:
    def candidates(seed: int) -> list[str]:
        return [a.candidate.digest() for a in run(job(kernel(), attempts=20, seed=seed))[1]]

    assert candidates(1) == candidates(1)
    assert candidates(1) != candidates(2)


def test_a_gain_is_followed_in_its_direction() -> None:
    """From stages=3 a step to 2 costs, one to 4 pays: the next one is 5, not another knob."""
    _, attempts = run(job(kernel(), attempts=4))
    assert [resolved_knobs(a.candidate)["stages"] for a in attempts] == [3, 2, 4, 5]
    assert attempts[3].hypothesis.startswith("stages 4 -> 5 against attempt 3")


def test_after_two_flat_windows_it_restarts_from_the_second_best() -> None:
    spec = job(kernel())
    second = kernel(stages=6, super_m=16, rotate=1)
    history = [
        attempt(1, 1.0, candidate=kernel()),
        attempt(2, 1.5, candidate=second),
        attempt(3, 1.6, candidate=kernel(comm_sms=32)),
    ]
    proposal = Tuner(spec).propose(Context(spec, history, 2, MemoryJournal()))
    assert proposal is not None
    before, after = resolved_knobs(second), resolved_knobs(proposal.candidate)
    assert sum(before[name] != after[name] for name in before) == 1


def test_after_one_flat_window_it_leaves_the_neighbourhood() -> None:
    spec = job(kernel())
    history = [attempt(1, 1.0, candidate=kernel())]
    changed = []
    for seed in range(8):
        policy = Tuner(job(kernel(), seed=seed))
        proposal = policy.propose(Context(spec, history, 1, MemoryJournal()))
        assert proposal is not None
        before, after = resolved_knobs(kernel()), resolved_knobs(proposal.candidate)
        changed.append(sum(before[name] != after[name] for name in before))
    assert max(changed) > 1


def test_a_problem_without_kernels_needs_a_start() -> None:
    spec = JobSpec(problem="my_own", target="sim:h200x4")
    with pytest.raises(SpecError, match="none is shipped for problem 'my_own': give start_from"):
        Tuner(spec)
