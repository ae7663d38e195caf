"""Evaluations over HTTP: one candidate judged once, no optimizer."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from api.schemas.common import CandidateBody, Name, Schema, VerdictRead
from api.schemas.jobs import JobState


class EvaluationCreate(Schema):
    """Ask for one verdict. Give `candidate` or `bundle`, not both."""

    problem: Name | None = Field(
        None, description="Slug or number of the problem; a bundle names its own."
    )
    target: Name | None = Field(None, description="The target; a bundle names its own.")
    candidate: CandidateBody | None = Field(None, description="The candidate to judge.")
    bundle: str | None = Field(
        None,
        description="A kernel bundle (zip) in base64: its verdict is reproduced.",
        json_schema_extra={"contentEncoding": "base64"},
    )
    shapes: list[Name] | None = Field(
        None, description="Bench shapes to time; all of them when left out.", max_length=64
    )
    depth: Literal["quick", "full"] = Field("full", description="How thoroughly to check.")
    seed: int | None = Field(
        None, description="Seed of inputs and schedules; secret when left out.", ge=0, lt=2**63
    )


class EvaluationLinks(Schema):
    """Addresses that belong to one evaluation."""

    self: str = Field(description="The evaluation itself.")
    events: str = Field(description="Its events as SSE.")


class EvaluationRead(Schema):
    """One evaluation and, once judged, its verdict."""

    id: str = Field(description="Identifier, `evl_...`.")
    status: JobState = Field(description="Where it stands.")
    problem: str = Field(description="Slug of the problem.")
    target: str = Field(description="The target.")
    created_at: datetime = Field(description="When it was asked for (UTC).")
    finished_at: datetime | None = Field(description="When it ended (UTC).")
    verdict: VerdictRead | None = Field(description="The verdict; null until it is judged.")
    detail: str | None = Field(description="Why there is no verdict, when it failed.")
    links: EvaluationLinks = Field(description="Related addresses.")
