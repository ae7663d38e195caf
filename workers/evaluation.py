"""What an evaluation asks for: the verdict on one candidate, without an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from agent.records import Depth
from agent.spec import SpecError
from pk_runtime.candidate import Candidate, CandidateError


@dataclass(frozen=True)
class EvaluationSpec:
    """One candidate to judge on one target; `shapes` None means the depth's default shapes."""

    problem: str
    target: str
    candidate: Candidate
    shapes: tuple[str, ...] | None = None
    seed: int | None = None
    depth: Depth = "full"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data that `from_json` reads back."""
        return {
            "problem": self.problem,
            "target": self.target,
            "candidate": self.candidate.to_json(),
            "shapes": list(self.shapes) if self.shapes is not None else None,
            "seed": self.seed,
            "depth": self.depth,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EvaluationSpec:
        """Read what `to_json` wrote; SpecError naming the field that is wrong."""
        depth = data.get("depth", "full")
        if depth not in get_args(Depth):
            raise SpecError(f"depth is {depth!r}: use 'quick' or 'full'")
        shapes = data.get("shapes")
        try:
            return cls(
                problem=data["problem"],
                target=data["target"],
                candidate=Candidate.from_json(data["candidate"]),
                shapes=None if shapes is None else tuple(shapes),
                seed=data.get("seed"),
                depth=cast(Depth, depth),
            )
        except KeyError as error:
            raise SpecError(f"the evaluation has no field {error.args[0]!r}") from error
        except CandidateError as error:
            raise SpecError(f"candidate.{error}") from error
