"""A model as the policy: real litellm over real HTTP, an analytic judge."""

from __future__ import annotations

import pytest

from agent.llm.protocol import LlmSettings
from agent.loop import Context, Outcome, optimize
from agent.policies import create_policy
from agent.policies.llm import (
    DIVERSIFY,
    REPAIR_LIMIT,
    UNUSABLE_LIMIT,
    choose_parent,
)
from agent.records import AttemptRecord
from agent.spec import Budget, JobSpec
from pk_runtime.candidate import Candidate
from problems.description import describe
from problems.registry import get
from tests.agent.analytic import Judge, kernel
from tests.agent.history import attempt, searched
from tests.agent.memory_journal import Killed, MemoryJournal
from tests.llm_stub import Answer, LlmStub, refuses, says

START = kernel("start")


def spec(attempts: int = 4, usd: float = 1.0, start: Candidate | None = START) -> JobSpec:
    return JobSpec(
        problem="gemm_reducescatter",
        target="sim:h200x4",
        policy="llm:openai/stub",
        budget=Budget(attempts=attempts, usd=usd),
        start_from=start,
    )


def settings(stub: LlmStub, context_tokens: int | None = None) -> LlmSettings:
    return LlmSettings(
        api_base=stub.api_base,
        api_key="k",
        max_tokens=1000,
        context_tokens=context_tokens,
        input_usd_per_million=1.0,
        output_usd_per_million=10.0,
    )


def proposes(candidate: Candidate, idea: str = "an idea") -> Answer:
    source = candidate.source
    return says(f"hypothesis: {idea}\npredicted_us: 700\nknobs: none\n```cpp\n{source}```\n")


def run(
    stub: LlmStub,
    journal: MemoryJournal,
    job: JobSpec,
    judge: Judge | None = None,
    context_tokens: int | None = None,
) -> Outcome:
    problem = describe(get(job.problem), 4)
    policy = create_policy(job, problem=problem, llm=settings(stub, context_tokens))
    return optimize(job, policy, judge or judging(), journal, lambda: 0.0)


def judging() -> Judge:
    """Time depends on the note: `fast` is better than `start`."""

    def us(candidate: Candidate) -> float:
        return 500.0 if "// fast" in candidate.source else 900.0

    return Judge(us, {("broken", "quick"): "build_failed", ("stuck", "quick"): "deadlock"})


def script() -> list[Answer]:
    return [
        proposes(kernel("broken"), "one"),
        proposes(kernel("stuck"), "two"),
        proposes(kernel("fast"), "three"),
    ]


def test_three_replies_improve_on_the_start_and_their_cost_is_recorded() -> None:
    journal = MemoryJournal(usd=1.0)
    with LlmStub(script()) as stub:
        outcome = run(stub, journal, spec())
    assert outcome.stop_reason == "budget_attempts"
    search = [a for a in journal.stored if a.phase == "search"]
    assert [(a.status, a.parent, a.hypothesis) for a in search] == [
        ("correct", None, "The kernel to start from, as it is."),
        ("build_failed", 1, "one"),
        ("deadlock", 2, "two"),
        ("correct", 3, "three"),
    ]
    assert outcome.best is not None
    assert outcome.best.candidate == kernel("fast")
    assert [a.cost.usd for a in search] == [0.0, *[pytest.approx(0.006)] * 3]
    assert [a.predicted_us for a in search[1:]] == [700.0] * 3
    assert [c.usd for c in journal.calls] == [pytest.approx(0.006)] * 3
    sources = {(c.cost_source, c.tokens_in, c.tokens_out) for c in journal.calls}
    assert sources == {("configured", 1000, 500)}
    assert all(call.reserved_usd > 0.01 for call in journal.calls), "1000 tokens of reply at most"


def test_each_call_sees_the_last_verdict_and_the_history() -> None:
    with LlmStub(script()) as stub:
        run(stub, MemoryJournal(), spec())
    first, second, third = (request["messages"][1]["content"] for request in stub.requests)
    assert "# The kernel to change: attempt 1" in first
    assert "status: build_failed" in second
    assert kernel("broken").source.strip() in second
    assert "# The kernel to change: attempt 3" in third
    assert "- attempt 2 from 1: one, predicted 700 us -> build_failed: judged build_failed" in third


def test_a_call_that_could_exceed_the_budget_is_not_made() -> None:
    journal = MemoryJournal(usd=0.001)
    with LlmStub(script()) as stub:
        outcome = run(stub, journal, spec(usd=0.001))
    assert stub.requests == []
    assert outcome.stop_reason == "budget_usd"
    assert outcome.best is not None, "the start is verified all the same"
    assert journal.calls == []


def test_the_budget_is_kept_over_several_calls() -> None:
    with LlmStub(script()) as probe:
        trial = MemoryJournal()
        run(probe, trial, spec(attempts=2))
    one = trial.calls[0].reserved_usd
    journal = MemoryJournal(usd=one + 0.007)
    with LlmStub(script()) as stub:
        outcome = run(stub, journal, spec(usd=one + 0.007))
    assert outcome.stop_reason == "budget_usd"
    assert len(stub.requests) == 2, "0.006 spent leaves room for one more reservation, 0.012 none"


def test_a_call_cut_off_by_a_crash_stays_reserved() -> None:
    journal = MemoryJournal(usd=0.05)
    assert journal.llm_reserve("openai/stub", 0.049) == 1
    with LlmStub(script()) as stub:
        outcome = run(stub, journal, spec(usd=0.05))
    assert stub.requests == []
    assert outcome.stop_reason == "budget_usd"


def test_an_unusable_reply_is_charged_told_once_and_no_attempt() -> None:
    journal = MemoryJournal()
    answers = [says("I would rather not."), proposes(kernel("fast")), proposes(kernel("stuck"))]
    with LlmStub(answers) as stub:
        run(stub, journal, spec(attempts=3))
    told = ["could not be used" in r["messages"][1]["content"] for r in stub.requests]
    assert told == [False, True, False]
    assert "no ```cpp block" in (journal.calls[0].unusable or "")
    assert journal.calls[0].usd == pytest.approx(0.006)
    assert [a.llm_call for a in journal.stored if a.phase == "search"] == [None, 2, 3]


def test_the_same_kernel_again_is_unusable() -> None:
    journal = MemoryJournal()
    with LlmStub([proposes(START), proposes(kernel("fast"))]) as stub:
        run(stub, journal, spec(attempts=2))
    assert journal.calls[0].unusable == "this is attempt 1 again, unchanged, which was correct"
    assert len([a for a in journal.stored if a.phase == "search"]) == 2


@pytest.mark.parametrize(
    "bad",
    [says("no"), Answer(body=b'{"id": "x", "cho'), says("```cpp\nint", finish_reason="length")],
)
def test_unusable_replies_in_a_row_end_the_search(bad: Answer) -> None:
    journal = MemoryJournal()
    with LlmStub([bad] * 9) as stub:
        outcome = run(stub, journal, spec())
    assert len(stub.requests) == UNUSABLE_LIMIT
    assert outcome.stop_reason == "exhausted"
    assert f"{UNUSABLE_LIMIT} replies of openai/stub in a row" in outcome.detail
    assert outcome.best is not None
    assert all((call.usd or 0) > 0 for call in journal.calls), "they are paid for"


def test_a_service_that_refuses_ends_the_job_with_what_is_verified() -> None:
    journal = MemoryJournal()
    with LlmStub([refuses(401, "wrong key")]) as stub:
        outcome = run(stub, journal, spec())
    assert outcome.stop_reason == "infra"
    assert "check model name and key" in outcome.detail
    assert outcome.best is not None
    assert (journal.calls[0].usd, journal.calls[0].settled) == (0.0, True)


def test_a_killed_job_never_buys_a_reply_twice() -> None:
    with LlmStub(script()) as stub:
        whole = MemoryJournal()
        run(stub, whole, spec())
    trail = [(a.number, a.candidate, a.parent, a.llm_call) for a in whole.stored]
    for write in range(1, whole.writes + 1):
        journal = MemoryJournal()
        journal.die_after = write
        with LlmStub(script()) as stub:
            with pytest.raises(Killed):
                run(stub, journal, spec())
            run(stub, journal, spec())
        assert len(stub.requests) == 3
        cut_off = [call for call in journal.calls if not call.settled]
        assert len(cut_off) <= 1
        again = [(a.number, a.candidate, a.parent) for a in journal.stored]
        assert again == [step[:3] for step in trail]


def test_the_history_is_cut_first_when_the_context_is_small() -> None:
    job = spec(attempts=9)
    answers = [proposes(kernel(f"k{i}"), f"idea {i} " + "word " * 60) for i in range(8)]
    with LlmStub(answers) as stub:
        whole = MemoryJournal()
        run(stub, whole, job)
    tokens = (whole.calls[-1].reserved_usd - 0.01) * 1e6
    with LlmStub(answers) as stub:
        outcome = run(stub, MemoryJournal(), job, context_tokens=int(tokens) - 20 + 1000)
    assert outcome.stop_reason == "budget_attempts"
    last = stub.requests[-1]["messages"][1]["content"]
    assert "the context window is nearly full" in last
    assert "# The kernel to change" in last


def test_an_overflow_that_only_the_service_knows_of() -> None:
    said = "This model's maximum context length is 9 tokens"
    refusal = refuses(400, said, "context_length_exceeded")
    journal = MemoryJournal()
    with LlmStub([refusal, proposes(kernel("fast"))]) as stub:
        run(stub, journal, spec(attempts=2))
    assert [(c.usd, bool(c.error)) for c in journal.calls] == [
        (0.0, True), (pytest.approx(0.006), False)
    ]  # fmt: skip
    with LlmStub([refusal] * 20) as stub:
        outcome = run(stub, MemoryJournal(), spec())
    assert outcome.stop_reason == "infra"
    assert "use a model with a longer context" in outcome.detail


def test_no_dollars_and_no_price_is_no_permission() -> None:
    journal = MemoryJournal(usd=0.0)
    with LlmStub(script()) as stub:
        problem = describe(get("gemm_reducescatter"), 4)
        policy = create_policy(
            spec(usd=0.0), problem=problem, llm=LlmSettings(api_base=stub.api_base, api_key="k")
        )
        outcome = optimize(spec(usd=0.0), policy, judging(), journal, lambda: 0.0)
    assert (outcome.stop_reason, stub.requests) == ("budget_usd", [])
    assert "configure prices" in outcome.detail


def test_without_a_shipped_kernel_it_starts_from_an_example() -> None:
    job = JobSpec(
        problem="my_own",
        target="sim:h200x4",
        policy="llm:openai/stub",
        budget=Budget(attempts=1),
    )
    journal = MemoryJournal()
    with LlmStub([proposes(kernel("fast"))]) as stub:
        problem = describe(get("gemm_reducescatter"), 4)
        policy = create_policy(job, problem=problem, llm=settings(stub))
        outcome = optimize(job, policy, judging(), journal, lambda: 0.0)
    assert "A kernel of another problem" in stub.requests[0]["messages"][1]["content"]
    assert outcome.best is not None
    assert journal.stored[0].parent is None


def context(history: list[AttemptRecord], plateau: int = 0) -> Context:
    return Context(spec(), history, plateau, MemoryJournal())


def test_the_next_kernel_is_derived_from_the_best() -> None:
    assert choose_parent(context([])) is None
    chosen = choose_parent(context(searched(1.0, 1.5, 1.2)))
    assert chosen is not None
    assert chosen.number == 2
    elite = choose_parent(context(searched(1.0, 1.5, 1.2), plateau=2))
    assert elite is not None
    assert elite.number == 3, "after two flat windows, from the second best"


def test_a_failing_attempt_is_repaired_a_few_times() -> None:
    history = [attempt(1, 1.0)]
    for number in range(2, REPAIR_LIMIT + 3):
        parent = choose_parent(context(history))
        assert parent is not None
        assert parent.number == number - 1
        history.append(attempt(number, "race", parent=parent.number))
    assert len(history) == REPAIR_LIMIT + 2
    parent = choose_parent(context(history))
    assert parent is not None
    assert parent.number == 1, "then it goes back to the best"


def test_a_refuted_leader_is_repaired_with_its_full_verdict() -> None:
    history = searched(1.0, 2.0)
    refuted = attempt(3, "race", candidate=history[1].candidate, phase="confirm", parent=2)
    assert choose_parent(context([*history, refuted])) is refuted


def test_infra_errors_are_nobodys_fault() -> None:
    chosen = choose_parent(context(searched(1.0, "infra_error")))
    assert chosen is not None
    assert chosen.number == 1


def test_a_plateau_asks_for_another_kind_of_idea() -> None:
    job = spec(attempts=9)
    with LlmStub([proposes(kernel(f"k{i}")) for i in range(8)]) as stub:
        run(stub, MemoryJournal(), job)
    advised = [DIVERSIFY in r["messages"][1]["content"] for r in stub.requests]
    assert advised == [False] * 6 + [True] * 2
