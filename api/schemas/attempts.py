"""Attempts over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from api.schemas.common import Schema, TimeKind, VerdictRead


class CostRead(Schema):
    """What one attempt cost."""

    usd: float | None = Field(description="US dollars; null when the model's price is unknown.")
    tokens_in: int = Field(description="Tokens sent to the model.")
    tokens_out: int = Field(description="Tokens the model wrote.")


class AttemptSummary(Schema):
    """An attempt in a list."""

    id: str = Field(description="Identifier, `att_...`.")
    job: str = Field(description="The job it belongs to.")
    number: int = Field(description="Number within the job, from 1.")
    parent: int | None = Field(description="Number of the attempt it was derived from.")
    phase: Literal["search", "confirm"] = Field(
        description="Part of the search, or one of the best judged again in full."
    )
    status: str = Field(description="The verdict's status; `pending` until it is judged.")
    hypothesis: str = Field(description="What was tried and why.")
    language: str = Field(description="Language of the candidate.")
    knobs: dict[str, int] = Field(description="The knob values it was proposed with.")
    candidate: str = Field(description="SHA-256 of the candidate.")
    candidate_us: float | None = Field(
        description="Its time in microseconds (geometric mean over the shapes)."
    )
    speedup: float | None = Field(description="Speedup over the baseline, likewise.")
    kind: TimeKind | None = Field(
        description="Whether times are simulated, uncalibrated or measured."
    )
    bottleneck: str | None = Field(description="What the slowest shape spends its time on.")
    cost: CostRead = Field(description="What it cost.")
    created_at: datetime = Field(description="When it was proposed (UTC).")
    judged_at: datetime | None = Field(description="When its verdict was stored (UTC).")


class AttemptRead(AttemptSummary):
    """Everything about one attempt."""

    summary: str | None = Field(description="The verdict in a sentence.")
    files: dict[str, str] = Field(description="The source: file name to text.")
    knob_changes: dict[str, list[int | None]] = Field(
        description="Knobs that differ from the parent's: `[before, after]`."
    )
    diff: str = Field(description="Unified diff of the source against the parent's; may be empty.")
    verdict: VerdictRead | None = Field(description="The verdict; null until it is judged.")
