"""The one loop of every policy: propose -> store -> judge -> store -> learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agent.records import AttemptRecord, Depth, LlmCall, Proposal
from agent.spec import JobSpec, StopReason
from pk_runtime.candidate import Candidate
from sandbox.verdict import Verdict

Evaluate = Callable[[Candidate, Depth], Verdict]
Clock = Callable[[], float]


class BudgetExhaustedError(Exception):
    """A model call would exceed the job's dollars; it was not made."""


class PolicyFailedError(Exception):
    """The policy cannot go on for a reason outside the search (a model service is down)."""


class Ledger(Protocol):
    """The model calls of one job. Every method is one committed transaction."""

    def llm_calls(self) -> Sequence[LlmCall]:
        """Return every call of the job in order of number, whatever its state."""

    def llm_reserve(self, model: str, usd: float) -> int:
        """Store a call with its reservation before it is made and return its number.

        Raises BudgetExhaustedError when `committed_usd(calls) + usd > spec.budget.usd`.
        """

    def llm_record(self, call: LlmCall) -> None:
        """Settle call `call.number`: its reply or error and its price, before it is acted on.

        Writes event `llm.call`.
        """

    def llm_discard(self, number: int, why: str) -> None:
        """Mark the reply of a call as unusable: charged, and never acted on again."""


class Journal(Ledger, Protocol):
    """The stored history of one job. Every method is one committed transaction.

    Any exception an implementation raises (lost lease, draining worker) passes through `optimize`
    untouched; calling it again with the same journal continues the job.
    """

    def attempts(self) -> Sequence[AttemptRecord]:
        """Return all attempts in order of number; at most the last one is not judged yet."""

    def propose(self, proposal: Proposal) -> AttemptRecord:
        """Store a proposal as the next attempt, before it is judged. Writes `attempt.proposed`."""

    def judged(self, number: int, verdict: Verdict) -> AttemptRecord:
        """Store the verdict and its timings before the next begins. Writes `attempt.judged`."""

    def event(self, type: str, payload: Mapping[str, Any]) -> None:
        """Append an event; the loop writes `best.updated`, `plateau.called`, `budget.warn`."""

    def stop_requested(self) -> StopReason | None:
        """Return `cancelled` once the user has asked for it, else None."""

    def elapsed_s(self) -> float:
        """Return how long earlier runs of the job worked (0 for the first); downtime is free."""


@dataclass(frozen=True)
class Context:
    """What a policy may look at: a pure function of the stored history.

    `attempts` are judged. `plateau` counts the flat windows so far (see `agent.plateau`): at 1 a
    policy should look elsewhere, at 2 restart from another elite; the loop stops at 3.
    """

    spec: JobSpec
    attempts: Sequence[AttemptRecord]
    plateau: int
    ledger: Ledger


class Policy(Protocol):
    """What proposes the next candidate."""

    name: str

    def propose(self, context: Context) -> Proposal | None:
        """Return the next search proposal, or None when there is nothing left to try.

        Deterministic given the seed and the context, so that a resumed job goes on as it would
        have. Raises BudgetExhaustedError or PolicyFailedError, which end the job with what is verified.
        """


@dataclass(frozen=True)
class Outcome:
    """How a job ended: the best verified attempt (None: nothing was), why, and a sentence."""

    best: AttemptRecord | None
    stop_reason: StopReason
    detail: str
