"""A journal in memory, with the guarantees that the loop asks of one; it can crash on demand."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

from agent.loop import BudgetExhaustedError
from agent.records import AttemptRecord, LlmCall, Proposal, committed_usd
from agent.spec import StopReason
from sandbox.verdict import Verdict


class Killed(BaseException):
    """The process died here; what was committed stays."""


class MemoryJournal:
    """Keeps a job's history in lists. `die_after` kills it after that many committed writes."""

    def __init__(self, usd: float = 5.0) -> None:
        self.usd = usd
        self.stored: list[AttemptRecord] = []
        self.calls: list[LlmCall] = []
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.cancel_after: int | None = None
        self.worked_s = 0.0
        self.die_after: int | None = None
        self.writes = 0

    def attempts(self) -> Sequence[AttemptRecord]:
        return tuple(self.stored)

    def propose(self, proposal: Proposal) -> AttemptRecord:
        assert all(attempt.verdict is not None for attempt in self.stored), "one is still pending"
        values = {f.name: getattr(proposal, f.name) for f in fields(Proposal)}
        number = len(self.stored) + 1
        attempt = AttemptRecord(number=number, created_at=datetime.now(UTC), **values)
        self.stored.append(attempt)
        self._committed()
        return attempt

    def judged(self, number: int, verdict: Verdict) -> AttemptRecord:
        assert self.stored[number - 1].verdict is None, "judged twice"
        self.stored[number - 1] = replace(self.stored[number - 1], verdict=verdict)
        self._committed()
        return self.stored[number - 1]

    def llm_calls(self) -> Sequence[LlmCall]:
        return tuple(self.calls)

    def llm_reserve(self, model: str, usd: float) -> int:
        if committed_usd(self.calls) + usd > self.usd:
            raise BudgetExhaustedError(f"{model} may cost {usd} dollars, which is not left")
        number = len(self.calls) + 1
        self.calls.append(LlmCall(number=number, model=model, reserved_usd=usd))
        self._committed()
        return number

    def llm_record(self, call: LlmCall) -> None:
        assert not self.calls[call.number - 1].settled, "settled twice"
        assert call.settled
        assert call.unusable is None, "that is for llm_discard to say"
        self.calls[call.number - 1] = copy.deepcopy(call)
        self._committed()

    def llm_discard(self, number: int, why: str) -> None:
        assert self.calls[number - 1].settled
        self.calls[number - 1] = replace(self.calls[number - 1], unusable=why)
        self._committed()

    def event(self, type: str, payload: Mapping[str, Any]) -> None:
        self.events.append((type, dict(payload)))
        self._committed()

    def stop_requested(self) -> StopReason | None:
        asked = self.cancel_after is not None and len(self.stored) >= self.cancel_after
        return "cancelled" if asked else None

    def elapsed_s(self) -> float:
        return self.worked_s

    def types(self) -> list[str]:
        return [type for type, _ in self.events]

    def _committed(self) -> None:
        self.writes += 1
        if self.die_after is not None and self.writes >= self.die_after:
            self.die_after = None
            raise Killed
