"""The history of one job in the store: what `agent.loop` reads and writes, each write fenced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from agent.loop import BudgetExhaustedError
from agent.records import AttemptRecord, Cost, CostSource, LlmCall, Phase, Proposal
from agent.spec import StopReason
from pk_runtime.candidate import Candidate
from sandbox.verdict import Verdict
from store import Store, Transaction
from store.candidates import load_candidate
from store.errors import BudgetExceededError
from store.leases import Claim
from store.models import Attempt
from store.models import LlmCall as LlmCallRow
from workers.interruption import Interrupted, Interruption


class StoreJournal:
    """`agent.loop.Journal` of the job that `claim` owns. Every method is one transaction.

    A write raises `store.errors.LeaseLostError`, and changes nothing, once another worker owns the
    job. What is requested from outside ends the work before a read or after a write, never inside.
    """

    def __init__(
        self, store: Store, claim: Claim, interruption: Interruption, *, limit_usd: float = 0.0
    ) -> None:
        self._store = store
        self._claim = claim
        self._job_id = claim.job_id
        self._interruption = interruption
        self._limit_usd = limit_usd
        self._judging: AttemptRecord | None = None
        self._step: dict[str, Any] = {}
        with store.database.read() as tx:
            self._elapsed_s = tx.jobs.get(claim.job_id).ran_s

    # --- attempts

    def attempts(self) -> Sequence[AttemptRecord]:
        """All attempts in order of number; at most the last one is not judged yet."""
        with self._interruption.shielded(), self._store.database.read() as tx:
            rows = tx.attempts.list(self._job_id)
            verdicts = tx.attempts.verdicts(self._job_id)
        candidates: dict[str, Candidate] = {}
        records = []
        for row in rows:
            stored = verdicts.get(row.number)
            if row.digest not in candidates:
                candidates[row.digest] = load_candidate(self._store.artifacts, row)
            verdict = None if stored is None else Verdict.from_json(stored.body)
            records.append(_record(row, candidates[row.digest], verdict))
        if records and records[-1].verdict is None:
            self._begin(records[-1])
        return records

    def propose(self, proposal: Proposal) -> AttemptRecord:
        """Store a proposal as the next attempt. Writes `attempt.proposed`."""
        candidate = proposal.candidate
        source = candidate.source_bytes()
        sha256 = self._store.artifacts.put(source)
        with self._writing() as tx:
            tx.artifacts.record(sha256, kind="source", size=len(source))
            row = tx.attempts.propose(
                self._job_id,
                parent=proposal.parent,
                phase=proposal.phase,
                hypothesis=proposal.hypothesis,
                language=candidate.language,
                digest=candidate.digest(),
                source_sha256=sha256,
                knobs=candidate.knobs,
                predicted_us=proposal.predicted_us,
                llm_call=proposal.llm_call,
                usd=proposal.cost.usd,
                tokens_in=proposal.cost.tokens_in,
                tokens_out=proposal.cost.tokens_out,
            )
            payload = {
                "number": row.number,
                "parent": row.parent,
                "phase": row.phase,
                "hypothesis": row.hypothesis,
                "knobs": dict(row.knobs),
            }
            tx.events.append(self._job_id, "attempt.proposed", payload)
            record = _record(row, candidate, None)
            self._begin(record)
        return record

    def judged(self, number: int, verdict: Verdict) -> AttemptRecord:
        """Store the verdict and its timings. Writes `attempt.judged`."""
        body = verdict.to_json()
        with self._writing() as tx:
            row = tx.attempts.get(self._job_id, number)
            record = _record(row, load_candidate(self._store.artifacts, row), verdict)
            tx.attempts.judged(
                self._job_id,
                number,
                body,
                objective_us=record.objective_us,
                speedup=record.speedup,
                kind=record.kind,
                bottleneck=record.bottleneck,
            )
            tx.leases.progressed(self._claim)
            payload = {
                "number": number,
                "status": record.status,
                "stage": verdict.stage,
                "candidate_us": record.objective_us,
                "kind": record.kind,
                "speedup": record.speedup,
                "bottleneck": record.bottleneck,
                "summary": verdict.summary,
            }
            tx.events.append(self._job_id, "attempt.judged", payload)
        return record

    def progress(self, stage: str, detail: Mapping[str, Any]) -> None:
        """Tell what the judge begins to do. Writes `attempt.stage` once for each step."""
        self._interruption.check()
        step = {**detail, "stage": stage}
        if step == self._step or self._judging is None:
            return
        with self._writing() as tx:
            payload = step | {"number": self._judging.number}
            tx.events.append(self._job_id, "attempt.stage", payload)
            self._step = step

    # --- the loop's own

    def event(self, type: str, payload: Mapping[str, Any]) -> None:
        """Append an event; `best.updated` also becomes the job's best attempt so far."""
        with self._writing() as tx:
            if type == "best.updated":
                tx.jobs.set_best(self._job_id, payload["number"])
            tx.events.append(self._job_id, type, payload)

    def stop_requested(self) -> StopReason | None:
        """`cancelled` once the user asked for it; raises Interrupted when the worker must end."""
        reason = self._interruption.reason
        if reason is None or reason == "cancelled":
            return reason
        raise Interrupted(reason)

    def elapsed_s(self) -> float:
        """Seconds that earlier runs of the job worked."""
        return self._elapsed_s

    # --- model calls

    def llm_calls(self) -> Sequence[LlmCall]:
        """Every model call of the job in order of number, whatever its state."""
        with self._interruption.shielded(), self._store.database.read() as tx:
            return [_call(row) for row in tx.llm_calls.list(self._job_id)]

    def llm_reserve(self, model: str, usd: float) -> int:
        """Reserve `usd` for a call and return its number. Raises BudgetExhaustedError."""
        try:
            with self._writing() as tx:
                return tx.llm_calls.reserve(
                    self._job_id, model=model, usd=usd, limit_usd=self._limit_usd
                )
        except BudgetExceededError as error:
            raise BudgetExhaustedError(str(error)) from error

    def llm_record(self, call: LlmCall) -> None:
        """Settle a call with what came back. Writes `llm.call`."""
        with self._writing() as tx:
            tx.llm_calls.settle(
                self._job_id,
                call.number,
                reply=call.reply,
                error=call.error,
                usd=call.usd,
                cost_source=call.cost_source,
                tokens_in=call.tokens_in,
                tokens_out=call.tokens_out,
                latency_s=call.latency_s,
                body={
                    "request": [dict(message) for message in call.request],
                    "raw": dict(call.raw),
                },
            )
            payload = {
                "number": call.number,
                "model": call.model,
                "tokens_in": call.tokens_in,
                "tokens_out": call.tokens_out,
                "usd": call.usd,
                "cost_source": call.cost_source,
                "error": call.error,
            }
            tx.events.append(self._job_id, "llm.call", payload)

    def llm_discard(self, number: int, why: str) -> None:
        """Mark the reply of a call as unusable."""
        with self._writing() as tx:
            tx.llm_calls.discard(self._job_id, number, why)

    def _begin(self, record: AttemptRecord) -> None:
        self._judging = record
        self._step = {}

    @contextmanager
    def _writing(self) -> Iterator[Transaction]:
        with self._interruption.shielded(), self._store.database.write() as tx:
            tx.leases.hold(self._claim)
            yield tx


def _record(row: Attempt, candidate: Candidate, verdict: Verdict | None) -> AttemptRecord:
    return AttemptRecord(
        number=row.number,
        created_at=row.created_at,
        candidate=candidate,
        hypothesis=row.hypothesis,
        parent=row.parent,
        phase=cast(Phase, row.phase),
        predicted_us=row.predicted_us,
        cost=Cost(usd=row.usd, tokens_in=row.tokens_in, tokens_out=row.tokens_out),
        llm_call=row.llm_call,
        verdict=verdict,
    )


def _call(row: LlmCallRow) -> LlmCall:
    body = row.body or {}
    return LlmCall(
        number=row.number,
        model=row.model,
        reserved_usd=row.reserved_usd,
        settled=row.settled,
        reply=row.reply,
        error=row.error,
        unusable=row.unusable,
        usd=row.usd,
        cost_source=cast(CostSource, row.cost_source),
        tokens_in=row.tokens_in,
        tokens_out=row.tokens_out,
        latency_s=row.latency_s,
        request=body.get("request", ()),
        raw=body.get("raw", {}),
    )
