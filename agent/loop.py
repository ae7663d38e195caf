"""The one loop of every policy: propose -> store -> judge -> store -> learn.

Search attempts are judged quick. A leader that stays unbeaten for a while is judged in full, at the
end the best few are, and attempt 1 too (the default everything is compared with); the best of those
is the result. Everything is decided from
the stored history, so calling `optimize` again after a crash continues exactly where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Protocol

from agent.plateau import FLAT_LIMIT, flat_windows
from agent.ranking import best_verified, judged_once, leaders
from agent.records import AttemptRecord, Depth, LlmCall, Proposal, committed_usd
from agent.spec import JobSpec, StopReason
from pk_runtime.candidate import Candidate
from sandbox.verdict import Verdict

CONFIRM_AFTER = 4  # search attempts that did not beat a leader: it is judged in full, lest the
# search goes on around a kernel that is only right by luck
CONFIRM_BEST = (
    3  # verified leaders wanted at the end; one if the target or the wall time is reached
)
CONFIRM_TRIES = 6  # leaders judged in full at the end to get them
INFRA_RETRIES = 3  # of one attempt, on infra_error
INFRA_ATTEMPTS = 2  # attempts in a row that only ever met infra_error: the job stops
WARN_FRACTION = 0.8  # of a budget

# A candidate, how thoroughly, and the best kernel so far to compare it with.
Evaluate = Callable[[Candidate, Depth, Candidate | None], Verdict]
Clock = Callable[[], float]


class PolicyStop(Exception):  # noqa: N818 - a way to end, not always an error
    """The policy ends the search, for `reason`; what is verified by then is still the result."""

    reason: StopReason = "exhausted"


class BudgetExhaustedError(PolicyStop):
    """A model call would exceed the job's dollars; it was not made."""

    reason: StopReason = "budget_usd"


class PolicyFailedError(PolicyStop):
    """The policy cannot go on for a reason outside the search (a model service is down)."""

    reason: StopReason = "infra"


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
        """Mark a settled call as unusable: charged, and never acted on again."""


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

    def judged(self, candidate: Candidate) -> AttemptRecord | None:
        """Return the attempt that already judged this candidate: proposing it again is a waste."""
        return judged_once(self.attempts, "search").get(candidate.digest())


class Policy(Protocol):
    """What proposes the next candidate."""

    name: str

    def propose(self, context: Context) -> Proposal | None:
        """Return the next search proposal, or None when there is nothing left to try.

        Deterministic given the seed and the context, so that a resumed job goes on as it would
        have. Raises PolicyStop to end the search with a reason of its own.
        """


@dataclass(frozen=True)
class Outcome:
    """How a job ended: the best verified attempt (None: nothing was), why, and a sentence."""

    best: AttemptRecord | None
    stop_reason: StopReason
    detail: str


def optimize(
    spec: JobSpec, policy: Policy, evaluate: Evaluate, journal: Journal, clock: Clock
) -> Outcome:
    """Run a job, or the rest of it, and return its outcome.

    `evaluate` judges a candidate at a depth, beside an incumbent if there is one (it must not blame
    the candidate for infrastructure); `clock` returns monotonic seconds.
    """
    return _Run(spec, policy, evaluate, journal, clock).run()


class _Run:
    """One call of `optimize`."""

    def __init__(
        self, spec: JobSpec, policy: Policy, evaluate: Evaluate, journal: Journal, clock: Clock
    ) -> None:
        self.spec = spec
        self.policy = policy
        self.evaluate = evaluate
        self.journal = journal
        self.clock = clock
        self.history = list(journal.attempts())
        self.started_at = clock() - journal.elapsed_s()
        self.detail = ""
        # An earlier run has warned about what was already used up.
        self.warned = {name for name, used, limit in self._used() if used >= WARN_FRACTION * limit}

    def run(self) -> Outcome:
        if self.history and self.history[-1].verdict is None:
            self._judge(self.history.pop())
        reason = self._search()
        wanted = 1 if reason in ("budget_wall", "target_reached") else CONFIRM_BEST
        while self._blocked() is None and (leader := self._to_confirm(wanted)) is not None:
            self._try(_confirmation(leader))
        reason = self._blocked() or reason
        best = best_verified(self.history)
        if reason != "cancelled" and self._reaches_target(best):
            reason = "target_reached"
        return Outcome(best, reason, self.detail or _DETAILS[reason])

    def _search(self) -> StopReason:
        while (reason := self._stop_reason()) is None:
            if (leader := self._due_for_confirmation()) is not None:
                self._try(_confirmation(leader))
                continue
            try:
                proposal = self.policy.propose(self._context())
            except PolicyStop as stop:
                self.detail = str(stop)
                return stop.reason
            if proposal is None:
                return "exhausted"
            self._try(proposal)
        return reason

    def _context(self) -> Context:
        return Context(self.spec, tuple(self.history), flat_windows(self.history), self.journal)

    def _stop_reason(self) -> StopReason | None:
        used = {name: used for name, used, limit in self._used() if used >= limit}
        if blocked := self._blocked():
            return blocked
        if self._reaches_target(best_verified(self.history)):
            return "target_reached"
        if "attempts" in used:
            return "budget_attempts"
        if "wall_s" in used:
            return "budget_wall"
        if flat_windows(self.history) >= FLAT_LIMIT:
            return "plateaued"
        return None

    def _blocked(self) -> StopReason | None:
        """Return why not even a confirmation may be judged any more."""
        if requested := self.journal.stop_requested():
            return requested
        last = self.history[-INFRA_ATTEMPTS:]
        failed = len(last) == INFRA_ATTEMPTS and all(a.status == "infra_error" for a in last)
        return "infra" if failed else None

    def _used(self) -> tuple[tuple[str, float, float], ...]:
        """Return (name, used, limit) of each budget."""
        budget = self.spec.budget
        steps = sum(a.phase == "search" and a.status != "infra_error" for a in self.history)
        return (
            ("attempts", steps, budget.attempts),
            ("usd", committed_usd(self.journal.llm_calls()), budget.usd),
            ("wall_s", self.clock() - self.started_at, budget.wall_s),
        )

    def _reaches_target(self, attempt: AttemptRecord | None) -> bool:
        goal = self.spec.target_speedup
        return goal is not None and attempt is not None and (attempt.speedup or 0.0) >= goal

    def _confirmed(self, attempt: AttemptRecord) -> bool:
        return attempt.candidate.digest() in judged_once(self.history, "confirm")

    def _due_for_confirmation(self) -> AttemptRecord | None:
        """Return a leader that search must not go on without: at the target, or leading for long.

        Search attempts that met nothing but infra_error do not count.
        """
        ranking = leaders(self.history)
        for leader in filter(self._reaches_target, ranking):
            if not self._confirmed(leader):
                return leader
        if not ranking or self._confirmed(ranking[0]):
            return None
        later = [a for a in self.history if a.number > ranking[0].number and a.phase == "search"]
        judged = [attempt for attempt in later if attempt.status != "infra_error"]
        return ranking[0] if len(judged) >= CONFIRM_AFTER else None

    def _to_confirm(self, wanted: int) -> AttemptRecord | None:
        """Return the next attempt to judge in full: a leader, then attempt 1 to compare with."""
        tries = len(list(takewhile(lambda a: a.phase == "confirm", reversed(self.history))))
        if tries < CONFIRM_TRIES:
            for leader in leaders(self.history)[:wanted]:
                if not self._confirmed(leader):
                    return leader
        first = self.history[0] if self.history else None
        return first if first is not None and first.correct and not self._confirmed(first) else None

    def _try(self, proposal: Proposal) -> None:
        self._judge(self.journal.propose(proposal))

    def _judge(self, pending: AttemptRecord) -> None:
        flat = flat_windows(self.history)
        incumbent = self._incumbent(pending)
        verdict = self.evaluate(pending.candidate, pending.depth, incumbent)
        for _ in range(INFRA_RETRIES):
            if verdict.status != "infra_error" or self.journal.stop_requested():
                break
            verdict = self.evaluate(pending.candidate, pending.depth, incumbent)
        attempt = self.journal.judged(pending.number, verdict)
        self.history.append(attempt)
        searching = attempt.phase == "search"
        if attempt is (self._leader() if searching else best_verified(self.history)):
            self._announce_best(attempt)
        if (now_flat := flat_windows(self.history)) > flat:
            self.journal.event("plateau.called", {"flat_windows": now_flat, "stop_at": FLAT_LIMIT})
        self._warn()

    def _incumbent(self, pending: AttemptRecord) -> Candidate | None:
        """What a candidate for the job's result has to beat."""
        best = best_verified(self.history) if pending.depth == "full" else None
        return best.candidate if best and best.candidate != pending.candidate else None

    def _leader(self) -> AttemptRecord | None:
        return next(iter(leaders(self.history)), None)

    def _announce_best(self, attempt: AttemptRecord) -> None:
        payload = {
            "number": attempt.number,
            "speedup": attempt.speedup,
            "candidate_us": attempt.objective_us,
            "kind": attempt.kind,
            "verified": attempt.verified,
        }
        self.journal.event("best.updated", payload)

    def _warn(self) -> None:
        for name, used, limit in self._used():
            if used >= WARN_FRACTION * limit and name not in self.warned:
                self.warned.add(name)
                self.journal.event("budget.warn", {"budget": name, "used": used, "limit": limit})


def _confirmation(attempt: AttemptRecord) -> Proposal:
    return Proposal(
        candidate=attempt.candidate,
        hypothesis=f"Attempt {attempt.number} holds at every check shape, world size and seed.",
        parent=attempt.number,
        phase="confirm",
        predicted_us=attempt.objective_us,
    )


_DETAILS: Mapping[StopReason, str] = {
    "target_reached": "The target speedup is reached by a fully verified attempt.",
    "plateaued": f"{FLAT_LIMIT} windows of attempts in a row brought no gain worth the name.",
    "budget_usd": "The dollars of the job are used up.",
    "budget_wall": "The working time of the job is used up.",
    "budget_attempts": "The attempts of the job are used up.",
    "exhausted": "The policy has nothing left to try.",
    "cancelled": "The job was cancelled.",
    "infra": f"{INFRA_ATTEMPTS} attempts in a row failed for reasons outside the candidates.",
}
