"""What predictions are worth: errors, rank correlations, and how good their choices are."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.twin.predict import Prediction

NOISE = 0.02  # settings closer than this are equal: repeated measurements differ as much


@dataclass(frozen=True)
class Errors:
    """Absolute errors of predicted over measured, as shares; how many points they are of."""

    points: int
    median: float
    p90: float
    worst: float
    worst_at: str
    bias: float  # median of the signed errors


def errors(predictions: Sequence[Prediction]) -> Errors:
    """ValueError without predictions."""
    worst = max(predictions, key=lambda p: abs(p.error))
    sizes = sorted(abs(p.error) for p in predictions)
    return Errors(
        points=len(predictions),
        median=statistics.median(sizes),
        p90=_quantile(sizes, 0.9),
        worst=sizes[-1],
        worst_at=describe(worst),
        bias=statistics.median(p.error for p in predictions),
    )


def describe(prediction: Prediction) -> str:
    """A point in words: kernel, dims, knobs."""
    knobs = " ".join(f"{k}={v}" for k, v in prediction.point.knobs.items()) or "defaults"
    return f"{prediction.point.group}, {knobs}"


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Linear between the neighbours, as numpy's default."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def spearman(predictions: Sequence[Prediction]) -> float | None:
    """Pearson's correlation of the ranks, ties with their mean rank; None if all are equal."""
    a = _ranks([p.point.us for p in predictions])
    b = _ranks([p.us for p in predictions])
    if len(set(a)) < 2 or len(set(b)) < 2:
        return None
    return statistics.correlation(a, b)


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [order.index(v) + (order.count(v) - 1) / 2 for v in values]


@dataclass(frozen=True)
class Order:
    """Pairs of knob settings of one kernel at one size that differ by more than the noise."""

    pairs: int
    right: int  # predicted in the measured order

    @property
    def correlation(self) -> float | None:
        """Right less wrong, over all: Kendall's tau without the ties of the measurement."""
        return (2 * self.right - self.pairs) / self.pairs if self.pairs else None


def order(predictions: Sequence[Prediction]) -> Order:
    """Of all pairs within each kernel and size."""
    pairs = right = 0
    for group in grouped(predictions, lambda p: p.point.group).values():
        for i, a in enumerate(group):
            for b in group[:i]:
                measured = a.point.us / b.point.us - 1
                if abs(measured) > NOISE:
                    pairs += 1
                    right += (a.us > b.us) == (measured > 0) and a.us != b.us
    return Order(pairs, right)


@dataclass(frozen=True)
class Pick:
    """The setting predicted fastest, beside the fastest measured one of the same group."""

    group: str
    picked: Prediction
    best: Prediction
    choices: int

    @property
    def loss(self) -> float:
        """Measured time of what is picked over the best, less one."""
        return self.picked.point.us / self.best.point.us - 1


def picks(predictions: Sequence[Prediction], group: Callable[[Prediction], str]) -> list[Pick]:
    """A pick for each group that leaves a choice; the earlier point wins where two are equal."""
    return [
        Pick(
            name,
            min(found, key=lambda p: p.us),
            min(found, key=lambda p: p.point.us),
            len(found),
        )
        for name, found in grouped(predictions, group).items()
        if len(found) > 1
    ]


def by_kernel_and_size(prediction: Prediction) -> str:
    """Groups the knob settings of a kernel at a size."""
    return prediction.point.group


def by_problem_and_size(prediction: Prediction) -> str:
    """Groups all that does the same: kernels with their knob settings."""
    point = prediction.point
    return f"{point.problem} " + ",".join(f"{k}={v}" for k, v in sorted(point.dims.items()))


def grouped(
    predictions: Sequence[Prediction], group: Callable[[Prediction], str]
) -> dict[str, list[Prediction]]:
    """Predictions by a text, in the order of the first of each."""
    found: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        found.setdefault(group(prediction), []).append(prediction)
    return found
