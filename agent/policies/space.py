"""The discrete space the tuner explores: kernels x legal values of their declared knobs."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass

from pk_runtime.candidate import Candidate, Knob, declared_knobs, resolved_knobs


@dataclass(frozen=True)
class Point:
    """One candidate of the space: which kernel, and the value of each of its knobs in order."""

    kernel: int
    values: tuple[int, ...]


class Space:
    """All points of one or more kernels. The default point of each is the candidate as given."""

    def __init__(self, kernels: Sequence[Candidate]) -> None:
        """Read the knobs; raise CandidateError if a kernel declares them wrongly."""
        self.kernels = tuple(kernels)
        self.knobs: tuple[tuple[Knob, ...], ...] = tuple(
            declared_knobs(kernel.source) for kernel in self.kernels
        )
        self._sizes = [math.prod(len(knob.values) for knob in knobs) for knobs in self.knobs]

    @property
    def size(self) -> int:
        """How many points there are."""
        return sum(self._sizes)

    def default(self, kernel: int) -> Point:
        """Return the point of a kernel as it was given."""
        chosen = resolved_knobs(self.kernels[kernel])
        return Point(kernel, tuple(chosen[knob.name] for knob in self.knobs[kernel]))

    def candidate(self, point: Point) -> Candidate:
        """Return the candidate of a point; it names only knobs that differ from the default."""
        kernel = self.kernels[point.kernel]
        if point == self.default(point.kernel):
            return kernel
        pairs = zip(self.knobs[point.kernel], point.values, strict=True)
        knobs = {knob.name: value for knob, value in pairs if value != knob.default}
        return Candidate(kernel.language, kernel.files, knobs)

    def locate(self, candidate: Candidate) -> Point | None:
        """Return the point of a candidate, None if it is not of this space."""
        for index, kernel in enumerate(self.kernels):
            if (kernel.language, kernel.files) == (candidate.language, candidate.files):
                chosen = resolved_knobs(candidate)
                return Point(index, tuple(chosen[knob.name] for knob in self.knobs[index]))
        return None

    def at(self, index: int) -> Point:
        """Return point number `index`, 0 to size - 1."""
        if not 0 <= index < self.size:
            raise IndexError(f"the space has {self.size} points, none is number {index}")
        kernel = 0
        while index >= self._sizes[kernel]:
            index -= self._sizes[kernel]
            kernel += 1
        values = []
        for knob in self.knobs[kernel]:
            index, digit = divmod(index, len(knob.values))
            values.append(knob.values[digit])
        return Point(kernel, tuple(values))

    def next_unexplored(self, start: int, explored: Set[Point]) -> Point | None:
        """Return the first point from number `start` on, cyclically, that is not in `explored`."""
        for offset in range(min(self.size, len(explored) + 1)):
            point = self.at((start + offset) % self.size)
            if point not in explored:
                return point
        return None

    def neighbours(self, point: Point, came_from: Point | None = None) -> list[Point]:
        """Return the points that differ from `point` in one knob, the fewest steps away first.

        Steps that go on in the direction from `came_from` to `point` come before all others.
        """
        scored = []
        for position, knob in enumerate(self.knobs[point.kernel]):
            values = sorted(knob.values)
            here = values.index(point.values[position])
            before = values.index(came_from.values[position]) if came_from is not None else here
            for there, value in enumerate(values):
                onward = (there - here) * (here - before) > 0
                moved = (*point.values[:position], value, *point.values[position + 1 :])
                if there != here:
                    scored.append((not onward, abs(there - here), Point(point.kernel, moved)))
        return [near for _, _, near in sorted(scored, key=lambda item: item[:2])]

    def changes(self, old: Point, new: Point) -> str:
        """Say what differs between two points of one kernel: `stages 4 -> 3, super_m 8 -> 4`."""
        triples = zip(self.knobs[new.kernel], old.values, new.values, strict=True)
        return ", ".join(f"{knob.name} {a} -> {b}" for knob, a, b in triples if a != b)
