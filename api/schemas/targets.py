"""Targets over HTTP."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from api.schemas.common import Schema, TimeKind


class TargetSummary(Schema):
    """A target in a list."""

    name: str = Field(description="Name to use in `target`, such as `sim:h200x4`.")
    backend: Literal["sim", "cuda"] = Field(description="Simulator or real GPUs.")
    kind: TimeKind = Field(description="What its times are: simulated, uncalibrated or measured.")
    world_size: int = Field(description="Number of ranks.")
    title: str = Field(description="The machine in words.")
    unavailable_here: str | None = Field(
        description="Why the machine of the service cannot judge on it; null if it can. Workers on "
        "other machines may."
    )


class TargetRead(TargetSummary):
    """Everything about one target."""

    sheet: dict[str, Any] = Field(description="The hardware sheet: every number with its unit.")
