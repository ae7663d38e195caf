"""One protocol for a problem wherever its code runs: in this process, or in a sandbox.

Catalogue problems are trusted and run in-process (`InProcessHost`). Custom problems are untrusted
files; a sandbox runs `python -m problems.host` and reads its files with `problems.wire`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from problems import scales
from problems.answers.exact import golden_of
from problems.answers.wrong_answers import WrongAnswer, bank, defective_outputs
from problems.contract import Problem, Tensors
from problems.description import Description, describe
from problems.errors import ProblemError
from problems.hidden import with_hidden
from problems.lint.controls import lint
from problems.lint.report import LintReport
from problems.reference.ranks import run_ranks

MAX_SEED = (1 << 63) - 1


@dataclass(frozen=True)
class Materialized:
    """One call's tensors, one entry per rank: inputs, the reference's outputs, and the golden.

    `peer_dims` are those of the problem.
    """

    inputs: list[Tensors]
    reference: list[Tensors]
    golden: list[Tensors]
    peer_dims: Mapping[str, int] = field(default_factory=dict)

    def bank(
        self,
        defective: dict[str, list[Tensors]] | None = None,
        previous: list[Tensors] | None = None,
    ) -> tuple[WrongAnswer, ...]:
        """The known wrong answers of this call, for `compare`; see `wrong_answers.bank`."""
        return bank(
            self.inputs,
            self.golden,
            self.reference,
            defective=defective,
            previous=previous,
            peer_dims=self.peer_dims,
        )


class ProblemHost(Protocol):
    """Answers everything that needs a problem's code.

    Every method raises ProblemError (UnknownShape, ReferenceFailed, RendezvousError, WireError)
    with a message for the problem's author.
    """

    def describe(self, world_size: int = 4) -> Description:
        """The problem without its code, at a world size."""
        ...

    def materialize(self, shape: str, world_size: int, seed: int) -> Materialized:
        """Inputs of a seed, and what must come out."""
        ...

    def defective(self, shape: str, world_size: int, seed: int) -> dict[str, list[Tensors]]:
        """Outputs of the reference under communication defects, for the wrong-answer bank."""
        ...

    def lint(self) -> LintReport:
        """Whether the problem can be admitted."""
        ...

    def with_hidden(self, seed: int, world_size: int) -> "ProblemHost":
        """A host that also knows the hidden check shapes of a seed, by name; see `hidden`."""
        ...


class InProcessHost:
    """A `ProblemHost` for trusted code: the catalogue's problems."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def describe(self, world_size: int = 4) -> Description:
        """The problem without its code, at a world size."""
        return describe(self.problem, world_size)

    def materialize(self, shape: str, world_size: int, seed: int) -> Materialized:
        """Inputs of a seed, and what must come out."""
        inputs = self._inputs(shape, world_size, seed)
        kept = [{name: tensor.clone() for name, tensor in rank.items()} for rank in inputs]
        reference = run_ranks(self.problem, kept if self.problem.mutates else inputs)
        golden = golden_of(self.problem, inputs)
        return Materialized(inputs, reference, golden, self.problem.peer_dims)

    def defective(self, shape: str, world_size: int, seed: int) -> dict[str, list[Tensors]]:
        """Outputs of the reference under communication defects, for the wrong-answer bank."""
        return defective_outputs(self.problem, self._inputs(shape, world_size, seed))

    def lint(self) -> LintReport:
        """Whether the problem can be admitted."""
        return lint(self.problem)

    def with_hidden(self, seed: int, world_size: int) -> "InProcessHost":
        """A host that also knows the hidden check shapes of a seed, by name; see `hidden`."""
        return InProcessHost(with_hidden(self.problem, seed, world_size))

    def _inputs(self, shape: str, world_size: int, seed: int) -> list[Tensors]:
        dims = self.problem.shape(shape).dims
        if world_size < 1 or not 0 <= seed <= MAX_SEED:
            raise ProblemError(
                f"World size {world_size} and seed {seed} must be positive; seeds end at 2^63-1."
            )
        if not self.problem.divides(dims, world_size):
            letters = ", ".join(f"{letter}={dims[letter]}" for letter in self.problem.sharded)
            raise ProblemError(
                f"Shape {shape!r} of {self.problem.slug!r} cannot be cut into {world_size} equal "
                f"parts ({letters}). Use a world size that divides them, or another shape."
            )
        k = scales.exponent(scales.span_of(self.problem, dims, world_size), seed)
        return [
            scales.scaled(self.problem.make_inputs(rank, world_size, seed, dims), k)
            for rank in range(world_size)
        ]
