"""Problems over HTTP."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from api.schemas.common import Name, Schema


class ShapeRead(Schema):
    """One set of sizes a problem is checked or timed at."""

    name: str = Field(description="Name to use in `shape` and `shapes`.")
    kind: Literal["check", "bench"] = Field(description="Checked for correctness, or also timed.")
    dims: dict[str, int] = Field(description="The sizes by name.")


class ProblemSummary(Schema):
    """A problem in a list."""

    slug: str = Field(description="Name to use in `problem`.")
    number: int | None = Field(description="Number in the catalogue; null for an uploaded one.")
    title: str = Field(description="What it computes, in a few words.")
    category: str = Field(description="Family of the problem.")
    origin: Literal["catalogue", "uploaded"] = Field(
        description="Shipped with pkforge, or added by a user and run only in a sandbox."
    )
    tolerance: str = Field(description="Tolerance class, `T0` (bit-exact) to `T3`.")


class NoiseRead(Schema):
    """How much of the tolerance one kind of honest implementation uses; 1 is the limit."""

    variant: str = Field(
        description="`rounded` (exact, rounded once), `ring` (as NCCL), `reversed`, `rotated` or "
        "`fp32` sums."
    )
    max: float = Field(description="Its largest error over the limit.")
    rms: float = Field(description="Its rms error over the limit.")


class CalibrationRead(Schema):
    """What separates honest rounding from mistakes, as measured when the problem was admitted."""

    gap: float | None = Field(
        description="Least ratio of a missing rank's error to the reference's own, at least 10; "
        "null if such a result is never finite or the problem is exact."
    )
    signal: float | None = Field(
        description="Least ratio of the results' spread to the tolerance; null without a limit."
    )
    noise: list[NoiseRead] = Field(description="Honest variants; empty if results are bit-exact.")


class ProblemRead(ProblemSummary):
    """Everything about one problem."""

    statement: str = Field(description="The task in plain text, with the signature of each rank.")
    dtype: str = Field(description="Element type of the tensors.")
    inputs: list[str] = Field(description="Names of the inputs, as kernels bind them.")
    outputs: list[str] = Field(description="Names of the outputs.")
    mutates: list[str] = Field(description="Inputs that a kernel must update in place.")
    shapes: list[ShapeRead] = Field(description="Every shape it is checked or timed at.")
    scales: tuple[int, int] = Field(
        description="Lowest and highest k of the powers 2^k that inputs are multiplied by."
    )
    calibration: CalibrationRead | None = Field(
        description="How far the tolerance is from honest rounding and from mistakes."
    )


class ProblemCreate(Schema):
    """An untrusted problem file: a Python module with one subclass of `Problem`."""

    source: str = Field(
        description="Text of the file. It is loaded only inside a sandbox.",
        min_length=1,
        max_length=262_144,
    )
    filename: Name = Field("problem.py", description="Its name, for messages.")
