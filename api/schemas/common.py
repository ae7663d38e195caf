"""Shapes shared by several resources: pages, problem documents, candidates, verdicts."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

TimeKind = Literal["simulated", "uncalibrated", "measured"]

Item = TypeVar("Item")

Name = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")
]
"""A short printable name: a slug, a target, a policy, a shape."""


class Schema(BaseModel):
    """Base of everything sent or received: unknown fields and NaN are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Page(Schema, Generic[Item]):
    """One page of a collection."""

    # The docstring of a generic model does not reach the schemas of its parametrizations.
    model_config = ConfigDict(json_schema_extra={"description": "One page of a collection."})

    items: list[Item] = Field(description="The entries of this page.")
    next_cursor: str | None = Field(
        description="Pass as `cursor` to get the next page; null on the last one."
    )


class FieldProblem(Schema):
    """One offending part of a request."""

    detail: str = Field(description="What is wrong with it.")
    pointer: str | None = Field(
        None, description="JSON pointer into the body, as a URI fragment (`#/budget/attempts`)."
    )
    parameter: str | None = Field(None, description="Name of the path or query parameter.")


class ProblemDocument(BaseModel):
    """Every error answer (RFC 9457, `application/problem+json`)."""

    type: str = Field(description="Address of the page that explains this kind of error.")
    title: str = Field(description="The kind of error in a few words; the same for each `code`.")
    status: int = Field(description="The HTTP status.")
    detail: str = Field(description="What went wrong this time.")
    code: str = Field(description="Stable code to branch on; `GET /v1/errors` lists them all.")
    advice: str = Field(description="What to do next.")
    instance: str | None = Field(None, description="The request's id, also in the service's log.")
    errors: list[FieldProblem] | None = Field(
        None, description="The offending fields, when the request does not fit the schema."
    )


class ErrorTypeRead(Schema):
    """One kind of error the service can answer with."""

    code: str = Field(description="Stable code.")
    status: int = Field(description="HTTP status it comes with.")
    title: str = Field(description="The kind of error in a few words.")
    advice: str = Field(description="What to do about it.")


class CandidateBody(Schema):
    """A kernel somebody proposes: source files, their language, knob values."""

    language: Literal["pk", "triton", "cuda"] = Field("pk", description="What it is written in.")
    files: dict[str, str] = Field(
        description='File name to text; a `pk` candidate is one file, `"kernel.cu"`.',
        min_length=1,
        max_length=32,
    )
    knobs: dict[str, int] = Field(
        default_factory=dict, description="Chosen knob values; the others keep their default."
    )


class TimingRead(Schema):
    """The time of one candidate on one shape."""

    shape: str = Field(description="Name of the shape.")
    kind: TimeKind = Field(description="Whether times are simulated, uncalibrated or measured.")
    candidate_us: float | None = Field(description="The candidate's time in microseconds.")
    baseline_us: float | None = Field(
        description="Time of PyTorch + NCCL in microseconds, of the same kind."
    )
    speedup: float | None = Field(description="`baseline_us / candidate_us`.")
    roofline_us: float | None = Field(description="Lower bound on the target in microseconds.")
    roofline_fraction: float | None = Field(description="`roofline_us / candidate_us`, up to 1.")
    bottleneck: str | None = Field(description="What the time is spent on.")
    detail: dict[str, Any] = Field(
        default_factory=dict,
        description="What else was seen; `report` says where the time goes (docs/report.md).",
    )


class VerdictRead(Schema):
    """What the judge says of one candidate on one target."""

    status: str = Field(
        description="`correct`, `build_failed`, `crashed`, `wrong_output`, `deadlock`, `race`, "
        "`timeout`, `rejected` or `infra_error`."
    )
    stage: str = Field(description="The stage that decided: `build`, `check`, `race`, `bench` ...")
    problem: str = Field(description="Slug of the problem.")
    target: str = Field(description="The target it was judged on.")
    language: str = Field(description="Language of the candidate.")
    timings: list[TimingRead] = Field(description="One entry for each benched shape.")
    evidence: dict[str, Any] = Field(description="Why; `summary` is a sentence for a person.")
    isolation: dict[str, Any] = Field(description="What confined the candidate while it ran.")
    seed: int | None = Field(description="Seed of the inputs and schedules.")
    versions: dict[str, Any] = Field(description="Versions the verdict depends on.")
    depth: str = Field(description="`quick` while searching, `full` for a result.")
    candidate: str = Field(description="SHA-256 of the candidate.")
    knobs: dict[str, int] = Field(description="Every knob with its value.")
    source: str = Field("", description="SHA-256 of its files alone, without knobs.")
    shapes: list[str] = Field(default_factory=list, description="The shapes that were to be timed.")
    labels: list[str] = Field(
        default_factory=list,
        description="Honest but notable practices, such as `lossy_arithmetic`.",
    )


class EventRead(Schema):
    """One entry of a job's append-only event log."""

    seq: int = Field(description="Position in the job's log, from 1.")
    type: str = Field(description="For example `attempt.judged`, `best.updated`, `job.finished`.")
    at: datetime = Field(description="When it happened (UTC).")
    payload: dict[str, Any] = Field(description="What happened; its fields depend on `type`.")
