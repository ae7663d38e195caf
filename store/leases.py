"""Who runs a job: claim, renew, fence, finish, and give back what a dead worker held.

Times are the workers' own clocks; keep the clocks of hosts that share a database within a few
seconds of each other, far below the length of a lease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from store.errors import LeaseLostError
from store.events import EventRepository
from store.models import Job

FinalState = Literal["succeeded", "failed", "cancelled"]


@dataclass(frozen=True)
class Claim:
    """The right to run a job: every write carries `fence`, and fails once it is not the newest."""

    job_id: str
    fence: int
    owner: str


@dataclass(frozen=True)
class Held:
    """A lease of a running job, as the reaper sees it; `target` decides who can run it next."""

    job_id: str
    fence: int
    owner: str
    target: str


@dataclass(frozen=True)
class Wakeup:
    """A queued job, and the target that decides which workers can run it."""

    job_id: str
    target: str


class LeaseRepository:
    """Leases of jobs, within one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._events = EventRepository(session)

    def claim(self, job_id: str, owner: str, lease_s: float) -> Claim | None:
        """Take a queued job for `lease_s` seconds with one conditional update.

        None if it is not queued: a duplicate wake-up is no error. Writes `job.started` the first
        time and `job.resumed` later.
        """
        now = datetime.now(UTC)
        row = self._session.execute(
            update(Job)
            .where(Job.id == job_id, Job.state == "queued")
            .values(
                state="running",
                lease_owner=owner,
                lease_until=now + timedelta(seconds=lease_s),
                fence=Job.fence + 1,
                runs=Job.runs + 1,
            )
            .returning(Job.fence, Job.runs)
            .execution_options(synchronize_session=False)
        ).first()
        if row is None:
            return None
        fence, runs = row
        self._session.execute(
            update(Job).where(Job.id == job_id, Job.started_at.is_(None)).values(started_at=now)
        )
        self._events.append(
            job_id, "job.started" if runs == 1 else "job.resumed", {"run": runs, "owner": owner}
        )
        return Claim(job_id, fence, owner)

    def hold(self, claim: Claim) -> None:
        """Lock the job's row for the running transaction; LeaseLostError if another owns it."""
        self._change(claim, {"fence": claim.fence})

    def renew(self, claim: Claim, lease_s: float, ran_s: float) -> bool:
        """Extend the lease, add `ran_s` seconds of work; whether a cancellation is requested.

        Raises LeaseLostError.
        """
        until = datetime.now(UTC) + timedelta(seconds=lease_s)
        self._change(claim, {"lease_until": until, "ran_s": Job.ran_s + ran_s})
        return self.cancel_requested(claim)

    def cancel_requested(self, claim: Claim) -> bool:
        """Whether the user asked for the end of the job; LeaseLostError if another owns it."""
        row = self._session.execute(
            select(Job.cancel_requested_at).where(
                Job.id == claim.job_id, Job.fence == claim.fence, Job.state == "running"
            )
        ).first()
        if row is None:
            raise _lost(claim)
        return row[0] is not None

    def progressed(self, claim: Claim) -> None:
        """Forget earlier crashes: the job got further than the last time."""
        self._change(claim, {"crashes": 0})

    def hand_back(self, claim: Claim, ran_s: float, reason: str) -> None:
        """Return the job to the queue unharmed, so that any worker goes on with it.

        Writes `job.queued`. Raises LeaseLostError.
        """
        self._change(claim, {"ran_s": Job.ran_s + ran_s} | _queued())
        self._events.append(claim.job_id, "job.queued", {"reason": reason})

    def finish(
        self,
        claim: Claim,
        state: FinalState,
        *,
        stop_reason: str | None,
        detail: str = "",
        best_number: int | None = None,
        bundle_sha256: str | None = None,
        error: Mapping[str, Any] | None = None,
        ran_s: float = 0.0,
    ) -> None:
        """End the job. Writes `job.finished`. Raises LeaseLostError."""
        values = {
            "state": state,
            "stop_reason": stop_reason,
            "finished_at": datetime.now(UTC),
            "best_number": best_number,
            "bundle_sha256": bundle_sha256,
            "error": dict(error) if error is not None else None,
            "ran_s": Job.ran_s + ran_s,
            "lease_owner": None,
            "lease_until": None,
        }
        self._change(claim, values)
        payload = {"status": state, "stop_reason": stop_reason, "best": best_number}
        if detail:
            payload["detail"] = detail
        self._events.append(claim.job_id, "job.finished", payload)

    def expired(self) -> Sequence[Held]:
        """Running jobs whose lease has run out."""
        return self._held(Job.lease_until < datetime.now(UTC))

    def owned_on(self, host: str) -> Sequence[Held]:
        """Running jobs whose owner is a process of `host` (`HOST:PID:START`)."""
        return self._held(Job.lease_owner.startswith(f"{host}:", autoescape=True))

    def reclaim(self, held: Held, max_crashes: int, cause: str) -> str | None:
        """Take a job from a worker that is gone; its new state, or None if it moved on.

        It is queued again, ends `cancelled` if that was asked for, or `failed` (`worker_lost`)
        after `max_crashes` lost workers in a row without a judged attempt in between.
        """
        row = self._session.execute(
            update(Job)
            .where(Job.id == held.job_id, Job.fence == held.fence, Job.state == "running")
            .values(crashes=Job.crashes + 1, lease_owner=None, lease_until=None)
            .returning(Job.crashes, Job.cancel_requested_at, Job.best_number)
            .execution_options(synchronize_session=False)
        ).first()
        if row is None:
            return None
        crashes, cancel_requested_at, best_number = row
        if cancel_requested_at is not None:
            return self._end(held.job_id, "cancelled", "cancelled", best_number, None)
        if crashes >= max_crashes:
            summary = (
                f"{crashes} workers in a row were lost while they ran this job ({cause}); "
                "look at the last attempt and at the worker's log"
            )
            return self._end(
                held.job_id,
                "failed",
                "infra",
                best_number,
                {"reason": "worker_lost", "summary": summary},
            )
        self._session.execute(update(Job).where(Job.id == held.job_id).values(_queued()))
        self._events.append(held.job_id, "job.queued", {"reason": "worker_lost", "cause": cause})
        return "queued"

    def fail_queued(self, job_id: str, error: Mapping[str, Any]) -> bool:
        """End a queued job that no worker manages to start; False if it moved on."""
        row = self._session.execute(
            update(Job)
            .where(Job.id == job_id, Job.state == "queued")
            .values(fence=Job.fence + 1)
            .returning(Job.best_number)
            .execution_options(synchronize_session=False)
        ).first()
        if row is None:
            return False
        self._end(job_id, "failed", "infra", row[0], error)
        return True

    def due_wakeups(self, waited_s: float) -> Sequence[Wakeup]:
        """Queued jobs whose wake-up is older than `waited_s`; marks them as woken now."""
        now = datetime.now(UTC)
        rows = self._session.execute(
            update(Job)
            .where(Job.state == "queued", Job.woken_at < now - timedelta(seconds=waited_s))
            .values(woken_at=now)
            .returning(Job.id, Job.target)
            .execution_options(synchronize_session=False)
        )
        return [Wakeup(job_id, target) for job_id, target in rows]

    def _held(self, condition: Any) -> Sequence[Held]:
        rows = self._session.execute(
            select(Job.id, Job.fence, Job.lease_owner, Job.target).where(
                Job.state == "running", condition
            )
        )
        return [Held(job_id, fence, owner or "", target) for job_id, fence, owner, target in rows]

    def _end(
        self,
        job_id: str,
        state: FinalState,
        stop_reason: str,
        best_number: int | None,
        error: Mapping[str, Any] | None,
    ) -> str:
        self._session.execute(
            update(Job)
            .where(Job.id == job_id)
            .values(
                state=state,
                stop_reason=stop_reason,
                finished_at=datetime.now(UTC),
                error=dict(error) if error is not None else None,
            )
        )
        payload = {"status": state, "stop_reason": stop_reason, "best": best_number}
        if error is not None:
            payload["detail"] = error["summary"]
        self._events.append(job_id, "job.finished", payload)
        return state

    def _change(self, claim: Claim, values: Mapping[str, Any]) -> None:
        row = self._session.execute(
            update(Job)
            .where(Job.id == claim.job_id, Job.fence == claim.fence, Job.state == "running")
            .values(dict(values))
            .returning(Job.id)
            .execution_options(synchronize_session=False)
        ).first()
        if row is None:
            raise _lost(claim)


def _queued() -> dict[str, Any]:
    return {
        "state": "queued",
        "lease_owner": None,
        "lease_until": None,
        "woken_at": datetime.now(UTC),
    }


def _lost(claim: Claim) -> LeaseLostError:
    return LeaseLostError(
        f"{claim.owner} (fence {claim.fence}) does not own {claim.job_id} any more; "
        "its work is dropped, the new owner goes on from what is stored"
    )
