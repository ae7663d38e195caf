"""Arithmetic of the judge's clock. Everything here is in seconds unless the name says otherwise.

Throughput: the judge's own clock around n and around 2n launches on all ranks, from the first start
message to the last answer. What a launch takes is their difference over n, which cancels messages,
host calls and the launch of the graph. But a runner that dawdles in the shorter run would shrink
the difference, so no more than `MOST_OVERHEAD_S` is ever taken off the longer run.

Latency: per iteration the maximum over ranks of the time from the release of a meeting of all ranks
to the end of the launch, by device events.
"""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MOST_OVERHEAD_S = 300e-6
RUN_S = 20e-3  # what n launches should take: the overhead is at most 1 % of 2n
_GRAPH_S = 4e-3
_MOST_LAUNCHES = 512
# A launch alone cannot be faster than one of many in a row, beyond what the two clocks differ by.
LATENCY_SLACK = 1.15


_RESAMPLES = 2000
_CONFIDENCE = 0.95


class ClockError(ValueError):
    """Times that cannot be: not finite, negative, or of another number of ranks or iterations."""


@dataclass(frozen=True)
class Spread:
    """Median and tenth and ninetieth percentile, in microseconds, and the samples as they came."""

    median_us: float
    p10_us: float
    p90_us: float
    samples_us: tuple[float, ...]

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(self.samples_us)

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON, rounded to nanoseconds."""
        return {
            "median_us": round(self.median_us, 3),
            "p10_us": round(self.p10_us, 3),
            "p90_us": round(self.p90_us, 3),
            "count": self.count,
            "samples_us": [round(sample, 3) for sample in self.samples_us],
        }


def per_launch_us(once_s: float, twice_s: float, launches: int) -> float:
    """Microseconds of a launch from the times of `launches` and of twice as many."""
    if not (0 < once_s < math.inf and 0 < twice_s < math.inf) or launches < 1:
        raise ClockError(f"{launches} launches cannot take {once_s} s, and twice that {twice_s} s")
    overhead = min(max(2 * once_s - twice_s, 0.0), MOST_OVERHEAD_S)
    return (twice_s - overhead) / (2 * launches) * 1e6


def spread(samples_us: Sequence[float]) -> Spread:
    """The spread of samples; ClockError if there are none or one is not a positive number."""
    if not samples_us or not all(0 < sample < math.inf for sample in samples_us):
        raise ClockError("there are no usable samples")
    ordered = sorted(samples_us)
    last = len(ordered) - 1
    return Spread(
        statistics.median(ordered),
        ordered[round(0.1 * last)],
        ordered[round(0.9 * last)],
        tuple(samples_us),
    )


def ratio_interval(baseline_us: Sequence[float], candidate_us: Sequence[float]) -> list[float]:
    """The 95 % confidence interval of the ratio of medians, [low, high].

    Percentile bootstrap (Efron 1979) over rounds: what was measured side by side is drawn together,
    so that what both share, such as a clock that slows down, does not widen the interval. Lists of
    different length are cut to the shorter. Draws are seeded: the same samples, the same answer.
    """
    rounds = list(zip(baseline_us, candidate_us, strict=False))
    if not rounds:
        raise ClockError("there are no usable samples")
    draw = random.Random(len(rounds))
    ratios = []
    for _ in range(_RESAMPLES):
        picked = draw.choices(rounds, k=len(rounds))
        ratios.append(
            statistics.median(b for b, _ in picked) / statistics.median(c for _, c in picked)
        )
    ratios.sort()
    tail = round((1 - _CONFIDENCE) / 2 * (_RESAMPLES - 1))
    return [round(ratios[tail], 4), round(ratios[-1 - tail], 4)]


def slowest(by_rank: Sequence[Sequence[float]]) -> list[float]:
    """Per iteration the maximum over ranks; ClockError if ranks report different numbers."""
    if not by_rank or len({len(times) for times in by_rank}) != 1 or not by_rank[0]:
        raise ClockError("ranks report different numbers of iterations, or none")
    return [max(times) for times in zip(*by_rank, strict=True)]


def believable(latency_us: float, throughput_us: float) -> bool:
    """Whether a latency that a runner reports goes with the throughput that the judge saw."""
    return latency_us >= throughput_us / LATENCY_SLACK


@dataclass(frozen=True)
class Size:
    """How often to launch: graphs of `graph` launches over `sets` sets, `replays` times."""

    sets: int
    graph: int
    replays: int

    @property
    def launches(self) -> int:
        """Launches of one run."""
        return self.graph * self.replays

    def order(self) -> list[int]:
        """The set of every launch of the graph."""
        return [number % self.sets for number in range(self.graph)]


def size(estimate_us: float, sets: int, *, most: int = _MOST_LAUNCHES) -> Size:
    """The size of a run of about `RUN_S`; every set is used equally often, at least once."""
    if not 0 < estimate_us < math.inf:
        raise ClockError(f"a launch cannot take {estimate_us} us")
    wanted = min(most, max(1, round(_GRAPH_S * 1e6 / estimate_us)))
    graph = max(sets, wanted - wanted % sets)
    return Size(sets, graph, max(1, round(RUN_S * 1e6 / (estimate_us * graph))))


def sets_beyond(l2_bytes: int, set_bytes: int, *, least: int = 3, most: int = 64) -> int:
    """How many sets are together three times as large as the L2 cache, within limits."""
    return min(most, max(least, -(-3 * l2_bytes // set_bytes)))
