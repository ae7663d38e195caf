"""Jobs over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from api.schemas.common import CandidateBody, Name, Schema, TimeKind

JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class BudgetBody(Schema):
    """What a job may use up."""

    attempts: int = Field(40, description="Attempts while searching.", ge=1, le=10_000)
    usd: float = Field(5.0, description="US dollars for model calls.", ge=0, le=1_000_000)
    wall_s: float = Field(3600.0, description="Seconds of working time.", gt=0, le=30 * 86_400)


class JobCreate(Schema):
    """Ask for an optimization run: problem x target x policy x budget."""

    problem: Name = Field(
        description="Slug or number of the problem.", examples=["gemm_reducescatter"]
    )
    target: Name = Field(description="Where it must be fast.", examples=["sim:h200x4"])
    policy: Name = Field(
        "tuner",
        description="What proposes candidates: `tuner`, `llm:MODEL`, or `scripted` with "
        "`scripted` filled in.",
    )
    shape: Name | None = Field(
        None, description="The shape to optimize; the geometric mean over all when left out."
    )
    budget: BudgetBody = Field(
        default_factory=lambda: BudgetBody.model_validate({}), description="When to stop."
    )
    target_speedup: float | None = Field(
        None, description="Stop once the best is this many times faster than the baseline.", gt=0
    )
    seed: int | None = Field(
        None, description="Makes the run repeatable; secret when left out.", ge=0, lt=2**63
    )
    start_from: CandidateBody | None = Field(
        None, description="Start from this candidate instead of the shipped kernels."
    )
    scripted: list[CandidateBody] | None = Field(
        None,
        description="The candidates of policy `scripted`, in order.",
        min_length=1,
        max_length=1000,
    )


class JobLinks(Schema):
    """Addresses that belong to one job."""

    self: str = Field(description="The job itself.")
    events: str = Field(description="Its events as SSE.")
    attempts: str = Field(description="Its attempts.")
    cancel: str = Field(description="POST here to cancel it.")
    kernel: str = Field(description="The winning kernel as a bundle.")
    verify: str = Field(description="POST here to have the winning kernel judged anew.")


class BestSummary(Schema):
    """The best correct attempt so far."""

    number: int = Field(description="Number of the attempt within the job.")
    candidate_us: float | None = Field(
        description="Its time in microseconds (geometric mean over the shapes)."
    )
    speedup: float | None = Field(description="Speedup over the baseline, likewise.")
    kind: TimeKind | None = Field(
        description="Whether times are simulated, uncalibrated or measured."
    )


class BestRead(BestSummary):
    """The best correct attempt so far, with what it is compared to."""

    baseline_us: float | None = Field(description="The baseline's time, likewise.")
    roofline_us: float | None = Field(description="The lower bound on the target, likewise.")
    bottleneck: str | None = Field(description="What its slowest shape spends its time on.")
    verified: bool = Field(description="Judged in full; only such an attempt becomes the kernel.")
    void: list[str] = Field(
        description="Why its verdict no longer counts: the problem, the judge or the machine class "
        "has changed since. Empty while it counts; POST to `links.verify` to judge it anew."
    )


class SpentRead(Schema):
    """What a job has used up."""

    attempts: int = Field(description="Attempts while searching; confirming the best few is free.")
    usd: float = Field(description="US dollars spent on and reserved for model calls.")
    wall_s: float = Field(description="Seconds of working time, as of the last heartbeat.")


class JobSummaryRead(Schema):
    """A job in a list."""

    id: str = Field(description="Identifier, `job_...`.")
    status: JobState = Field(description="Where it stands.")
    stop_reason: str | None = Field(description="Why it ended; null while it has not.")
    cancel_requested: bool = Field(description="Somebody asked for it to be cancelled.")
    problem: str = Field(description="Slug of the problem.")
    target: str = Field(description="The target.")
    policy: str = Field(description="What proposes candidates.")
    best: BestSummary | None = Field(description="The best correct attempt so far.")
    created_at: datetime = Field(description="When it was submitted (UTC).")
    started_at: datetime | None = Field(description="When a worker first took it up (UTC).")
    finished_at: datetime | None = Field(description="When it ended (UTC).")


class JobRead(JobSummaryRead):
    """One job."""

    best: BestRead | None = Field(description="The best correct attempt so far.")
    detail: str | None = Field(description="What went wrong, when it failed.")
    shape: str | None = Field(description="The shape it optimizes; null for all bench shapes.")
    budget: BudgetBody = Field(description="When to stop.")
    spent: SpentRead = Field(description="What it has used up.")
    target_speedup: float | None = Field(description="The speedup to stop at.")
    seed: int | None = Field(description="The seed given at submission.")
    runs: int = Field(description="How often a worker took it up; more than 1 after a crash.")
    kernel_sha256: str | None = Field(description="SHA-256 of its bundle; null without a kernel.")
    links: JobLinks = Field(description="Related addresses.")
