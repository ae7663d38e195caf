"""The noise of honest implementations: how much of the tolerance they use.

A tolerance must tell honest rounding from mistakes on both sides: what one missing rank changes is
far beyond it (the lint's gap), and whatever a right kernel may do about rounding is within. So the
lint runs the reference with its sums in other orders and precisions, and rounds the golden once,
which is what the best kernel returns.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from problems.answers.compare import Checker
from problems.contract import Tensors
from problems.reference.ranks import Run
from problems.reference.variants import RING, VARIANTS, Variant

ROUNDED = "rounded"
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")


@dataclass(frozen=True)
class Noise:
    """The largest error and the rms error, as shares of their limits; 1 is the limit."""

    max: float
    rms: float

    def most(self, other: "Noise") -> "Noise":
        """The larger of each."""
        return Noise(max(self.max, other.max), max(self.rms, other.rms))


def noise_of(checker: Checker, results: Sequence[Tensors]) -> Noise:
    """The noise of results of the right form: the most of any output on any rank."""
    most = Noise(0.0, 0.0)
    for rank, outputs in enumerate(results):
        for name, tensor in outputs.items():
            most = most.most(Noise(*checker.rule(rank, name).shares(tensor)))
    return most


def honest_variants(
    golden: Sequence[Tensors], honest: Run, rerun: Callable[[Variant], Run]
) -> Iterator[tuple[str, list[Tensors]]]:
    """Names and outputs of honest implementations.

    "rounded": the golden rounded once; "ring": the reference, whose own run is `honest`; where
    something is reduced also "reversed" and "rotated" orders and "fp32" sums, which `rerun` makes.
    """
    yield (
        ROUNDED,
        [
            {name: exact[name].to(tensor.dtype) for name, tensor in outputs.items()}
            for exact, outputs in zip(golden, honest.outputs, strict=True)
        ],
    )
    reduces = any(call.split()[0] in _REDUCING for call in honest.calls)
    for name, variant in VARIANTS.items():
        if variant == RING:
            yield name, honest.outputs
        elif reduces:
            yield name, rerun(variant).outputs
