"""What a job leaves behind: proposals, attempts and model calls, as plain data.

The loop and the policies see nothing but these, so the whole state of a job can be stored, and a
job that was killed goes on from what is stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from pk_runtime.candidate import Candidate
from sandbox.verdict import Depth as Depth
from sandbox.verdict import Status, Timing, TimingKind, Verdict

Phase = Literal["search", "confirm"]
CostSource = Literal["litellm", "configured", "reserved", "unknown"]

DEPTH_OF: Mapping[Phase, Depth] = {"search": "quick", "confirm": "full"}


@dataclass(frozen=True)
class Cost:
    """What an attempt cost: dollars (None when the price is unknown) and tokens."""

    usd: float | None = 0.0
    tokens_in: int = 0
    tokens_out: int = 0


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A candidate to be judged and why.

    `parent` is the number of the attempt it was derived from (None: a root of the tree); a confirm
    proposal's parent is the search attempt it re-judges. `llm_call` is the number of the model
    call whose reply it is, so that storing the proposal also marks that reply as used.
    """

    candidate: Candidate
    hypothesis: str
    parent: int | None = None
    phase: Phase = "search"
    predicted_us: float | None = None
    cost: Cost = field(default_factory=Cost)
    llm_call: int | None = None

    @property
    def depth(self) -> Depth:
        """How thoroughly it is judged: quick while searching, full to confirm."""
        return DEPTH_OF[self.phase]


@dataclass(frozen=True, kw_only=True)
class AttemptRecord(Proposal):
    """A stored proposal: numbered from 1 within its job, judged or (verdict None) still pending."""

    number: int
    created_at: datetime
    verdict: Verdict | None = None

    @property
    def status(self) -> Status | None:
        """The verdict's status, None while pending."""
        return None if self.verdict is None else self.verdict.status

    @property
    def correct(self) -> bool:
        """Judged correct, with times to rank it by."""
        return self.status == "correct" and self.speedup is not None

    @property
    def verified(self) -> bool:
        """Judged correct at depth full: only such an attempt may be a job's result."""
        return self.correct and self.verdict is not None and self.verdict.depth == "full"

    @property
    def objective_us(self) -> float | None:
        """Geometric mean of the candidate's times over the judged shapes (one shape: its time)."""
        return _geometric_mean([timing.candidate_us for timing in self._timings])

    @property
    def speedup(self) -> float | None:
        """Geometric mean of the speedups over the baseline on the judged shapes."""
        return _geometric_mean([timing.speedup for timing in self._timings])

    @property
    def kind(self) -> TimingKind | None:
        """`simulated` or `measured`; None without timings."""
        return self._timings[0].kind if self._timings else None

    @property
    def bottleneck(self) -> str | None:
        """What bounds the slowest judged shape; None without timings."""
        slowest = max(self._timings, key=lambda timing: timing.candidate_us, default=None)
        return slowest.bottleneck if slowest is not None else None

    @property
    def _timings(self) -> tuple[Timing, ...]:
        return self.verdict.timings if self.verdict is not None else ()


def _geometric_mean(values: Sequence[float]) -> float | None:
    if not values or any(value <= 0 for value in values):
        return None
    return math.exp(math.fsum(map(math.log, values)) / len(values))


@dataclass(frozen=True, kw_only=True)
class LlmCall:
    """One model call of a job, numbered from 1 by `Ledger.llm_reserve`.

    Its life: reserved (only `reserved_usd` is set) -> recorded (a reply, or `error`) -> used by an
    attempt (`AttemptRecord.llm_call`) or `unusable`. A call that stayed reserved was cut off by a
    crash: it may have been charged, so its reservation stays spent. `cost_source` says where `usd`
    comes from: litellm's price table, configured prices, the reservation (the call failed after it
    may have been charged), or nowhere (`usd` is None).
    """

    number: int
    model: str
    reserved_usd: float
    settled: bool = False
    reply: str | None = None
    error: str | None = None
    unusable: str | None = None
    usd: float | None = None
    cost_source: CostSource = "unknown"
    tokens_in: int = 0
    tokens_out: int = 0
    latency_s: float = 0.0
    request: Sequence[Mapping[str, str]] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cost(self) -> Cost:
        """What it cost, as an attempt records it."""
        return Cost(usd=self.usd, tokens_in=self.tokens_in, tokens_out=self.tokens_out)

    @property
    def committed_usd(self) -> float:
        """What it takes from the budget: the price once settled, the reservation until then."""
        return (self.usd or 0.0) if self.settled else self.reserved_usd


def committed_usd(calls: Iterable[LlmCall]) -> float:
    """Dollars spent or reserved by `calls`: what `Ledger.llm_reserve` adds a new call to."""
    return math.fsum(call.committed_usd for call in calls)


def unused_reply(calls: Sequence[LlmCall], attempts: Iterable[AttemptRecord]) -> LlmCall | None:
    """Return the reply that was bought and stored but not yet acted on, if there is one."""
    used = {attempt.llm_call for attempt in attempts}
    for call in reversed(calls):
        if call.reply is not None and call.unusable is None and call.number not in used:
            return call
    return None
