"""The journal in the store: what the loop reads is what it wrote, and only the owner writes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from agent.loop import BudgetExhaustedError
from agent.records import Cost, LlmCall, Proposal
from pk_runtime.candidate import Candidate
from store import Store
from store.errors import AttemptStateError, LeaseLostError
from store.leases import Claim
from tests.workers import examples
from workers.interruption import Interrupted, Interruption
from workers.journal import StoreJournal

PROPOSAL = Proposal(
    candidate=Candidate("pk", {"kernel.cu": "// us=400\n"}, {"stages": 3}),
    hypothesis="three stages fit",
    predicted_us=410.0,
    cost=Cost(usd=None, tokens_in=10, tokens_out=2),
    llm_call=1,
)


def claim_of(store: Store, job_id: str) -> Claim:
    with store.database.write() as tx:
        claim = tx.leases.claim(job_id, "host:1:1", 90)
    assert claim is not None
    return claim


def journal(store: Store, limit_usd: float = 1.0) -> tuple[StoreJournal, Claim, Interruption]:
    claim = claim_of(store, examples.submit(store, "us=400"))
    interruption = Interruption()
    return StoreJournal(store, claim, interruption, limit_usd=limit_usd), claim, interruption


def lose(store: Store, claim: Claim) -> Claim:
    """Give the job to another worker."""
    with store.database.write() as tx:
        (held,) = tx.leases.owned_on("host")
        tx.leases.reclaim(held, 3, "test")
    return claim_of(store, claim.job_id)


def test_attempts_come_back_as_they_were_proposed_and_judged(store: Store) -> None:
    notes, claim, interruption = journal(store)
    assert notes.attempts() == []
    first = notes.propose(PROPOSAL)
    assert (first.number, first.verdict) == (1, None)
    assert notes.attempts() == [first]
    verdict = examples.verdict(PROPOSAL.candidate)
    judged = notes.judged(1, verdict)
    assert judged == replace(first, verdict=verdict)
    second = notes.propose(replace(PROPOSAL, parent=1, phase="confirm", llm_call=None))
    resumed = StoreJournal(store, claim, interruption)
    assert resumed.attempts() == [judged, second]


def test_attempts_that_differ_in_knobs_share_one_source(store: Store) -> None:
    notes, *_ = journal(store)
    for stages in (2, 3):
        candidate = Candidate("pk", PROPOSAL.candidate.files, {"stages": stages})
        number = notes.propose(replace(PROPOSAL, candidate=candidate)).number
        notes.judged(number, examples.verdict(candidate))
    assert [record.candidate.knobs["stages"] for record in notes.attempts()] == [2, 3]
    assert len([path for path in store.artifacts.root.rglob("*") if path.is_file()]) == 1


def test_nothing_is_proposed_before_the_last_is_judged(store: Store) -> None:
    notes, *_ = journal(store)
    notes.propose(PROPOSAL)
    with pytest.raises(AttemptStateError):
        notes.propose(PROPOSAL)


def test_every_step_is_told(store: Store) -> None:
    notes, claim, _ = journal(store)
    notes.propose(PROPOSAL)
    for stage, shape in (("check", "tiny"), ("check", "tiny"), ("check", "odd"), ("bench", "odd")):
        notes.progress(stage, {"shape": shape})
    notes.judged(1, examples.verdict(PROPOSAL.candidate))
    notes.event("best.updated", {"number": 1, "speedup": 2.5})
    told = examples.events(store, claim.job_id)[2:]
    assert [type for type, _ in told] == [
        "attempt.proposed",
        *["attempt.stage"] * 3,
        "attempt.judged",
        "best.updated",
    ]
    assert told[0][1] == {
        "number": 1,
        "parent": None,
        "phase": "search",
        "hypothesis": "three stages fit",
        "knobs": {"stages": 3},
    }
    assert told[1][1] == {"number": 1, "stage": "check", "shape": "tiny"}
    judged = told[4][1]
    assert (judged["number"], judged["status"], judged["kind"]) == (1, "correct", "simulated")
    assert (judged["speedup"], judged["bottleneck"]) == (pytest.approx(2.5), "nvlink")
    assert examples.job(store, claim.job_id).best_number == 1


def test_a_resumed_judgement_is_told_under_its_number(store: Store) -> None:
    notes, claim, interruption = journal(store)
    notes.propose(PROPOSAL)
    resumed = StoreJournal(store, claim, interruption)
    resumed.attempts()
    resumed.progress("build", {})
    assert examples.events(store, claim.job_id)[-1][1] == {"number": 1, "stage": "build"}


def test_a_former_owner_writes_nothing(store: Store) -> None:
    notes, claim, _ = journal(store)
    notes.propose(PROPOSAL)
    number = notes.llm_reserve("m", 0.1)
    lose(store, claim)
    before = examples.events(store, claim.job_id)
    call = LlmCall(number=number, model="m", reserved_usd=0.1, settled=True, reply="x", usd=0.1)
    with pytest.raises(LeaseLostError):
        notes.judged(1, examples.verdict(PROPOSAL.candidate))
    with pytest.raises(LeaseLostError):
        notes.event("best.updated", {"number": 1})
    with pytest.raises(LeaseLostError):
        notes.progress("build", {})
    with pytest.raises(LeaseLostError):
        notes.llm_reserve("m", 0.1)
    with pytest.raises(LeaseLostError):
        notes.llm_record(call)
    with pytest.raises(LeaseLostError):
        notes.llm_discard(number, "no code")
    assert examples.events(store, claim.job_id) == before
    assert examples.attempts(store, claim.job_id) == [(1, "search", None)]
    assert not notes.llm_calls()[0].settled


def test_a_former_owner_proposes_nothing(store: Store) -> None:
    notes, claim, _ = journal(store)
    lose(store, claim)
    with pytest.raises(LeaseLostError):
        notes.propose(PROPOSAL)
    assert examples.attempts(store, claim.job_id) == []


def test_model_calls_are_reserved_and_settled(store: Store) -> None:
    notes, claim, interruption = journal(store, limit_usd=1.0)
    number = notes.llm_reserve("gpt", 0.7)
    assert notes.llm_calls() == [LlmCall(number=1, model="gpt", reserved_usd=0.7)]
    with pytest.raises(BudgetExhaustedError, match="budget"):
        notes.llm_reserve("gpt", 0.4)
    call = LlmCall(
        number=number,
        model="gpt",
        reserved_usd=0.7,
        settled=True,
        reply="```cpp```",
        usd=0.2,
        cost_source="litellm",
        tokens_in=1000,
        tokens_out=100,
        latency_s=1.5,
        request=[{"role": "user", "content": "faster, please"}],
        raw={"id": "x"},
    )
    notes.llm_record(call)
    assert StoreJournal(store, claim, interruption).llm_calls() == [call]
    notes.llm_discard(number, "there is no code in it")
    assert notes.llm_calls()[0].unusable == "there is no code in it"
    assert examples.events(store, claim.job_id)[-1] == (
        "llm.call",
        {
            "number": 1,
            "model": "gpt",
            "tokens_in": 1000,
            "tokens_out": 100,
            "usd": 0.2,
            "cost_source": "litellm",
            "error": None,
        },
    )
    assert notes.llm_reserve("gpt", 0.4) == 2


def test_the_loop_is_told_of_a_cancellation_and_a_drain_ends_it(store: Store) -> None:
    notes, _, interruption = journal(store)
    assert notes.stop_requested() is None
    interruption.request("cancelled")
    assert notes.stop_requested() == "cancelled"
    with pytest.raises(Interrupted):
        notes.progress("build", {})
    draining = Interruption()
    draining.request("drained")
    other = StoreJournal(store, claim_of(store, examples.submit(store, "us=1")), draining)
    with pytest.raises(Interrupted):
        other.stop_requested()


def test_what_is_requested_while_it_writes_ends_the_work_afterwards(store: Store) -> None:
    claim = claim_of(store, examples.submit(store, "us=400"))
    with Interruption() as interruption:
        notes = StoreJournal(store, claim, interruption)
        with suppress(Interrupted), interruption.interruptible():
            interruption.reason = "drained"
            notes.propose(PROPOSAL)
            pytest.fail("the work went on")
    assert examples.attempts(store, claim.job_id) == [(1, "search", None)]


def test_working_time_of_earlier_runs_counts(store: Store) -> None:
    job_id = examples.submit(store, "us=400")
    claim = claim_of(store, job_id)
    assert StoreJournal(store, claim, Interruption()).elapsed_s() == 0.0
    with store.database.write() as tx:
        tx.leases.hand_back(claim, 12.5, "drained")
    claim = claim_of(store, job_id)
    assert StoreJournal(store, claim, Interruption()).elapsed_s() == 12.5
