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


class ProblemRead(ProblemSummary):
    """Everything about one problem."""

    statement: str = Field(description="The task in plain text, with the signature of each rank.")
    dtype: str = Field(description="Element type of the tensors.")
    inputs: list[str] = Field(description="Names of the inputs, as kernels bind them.")
    outputs: list[str] = Field(description="Names of the outputs.")
    mutates: list[str] = Field(description="Inputs that a kernel must update in place.")
    shapes: list[ShapeRead] = Field(description="Every shape it is checked or timed at.")


class ProblemCreate(Schema):
    """An untrusted problem file: a Python module with one subclass of `Problem`."""

    source: str = Field(
        description="Text of the file. It is loaded only inside a sandbox.",
        min_length=1,
        max_length=262_144,
    )
    filename: Name = Field("problem.py", description="Its name, for messages.")
