"""Check shapes that nobody can know beforehand.

A kernel that is right at the stated shapes only is not right. So a full verdict is also reached at
sizes drawn from its secret seed, within what the problem's own check shapes promise: every letter
lies between its least and its largest size there, and is a multiple of what divides all of them.
That is also what a kernel may rely on.
"""

import copy
import inspect
import math
import random
from dataclasses import dataclass

from problems.contract import HIDDEN, Dims, Problem, Shape
from problems.description import Description
from problems.errors import blamed
from problems.lint.validation import CHECK_WORLDS, breaches_of_sizes

# No tile is narrower: a size that is no multiple of it leaves a rest.
RAGGED = 8
_SMALL = 2.0  # the first one's bytes, relative to those of the second largest check shape
_TRIES, _STRICT = 2000, 1000
_EXAMPLES = 1  # the seed of the task lint's
_RESTRICT = (
    "The judge also draws sizes itself, each between the least and the largest of the check shapes "
    "and a multiple of what divides all of them. Choose these so that the operator takes what lies "
    "between, or say in `admits` which sizes it takes."
)


def with_hidden(problem: Problem, seed: int, world_size: int) -> Problem:
    """The same problem with the hidden shapes of a seed besides its own."""
    wider = copy.copy(problem)
    wider.shapes = (*problem.shapes, *hidden_shapes(problem, seed, world_size))
    return wider


def hidden_shapes(problem: Problem, seed: int, world_size: int) -> tuple[Shape, ...]:
    """The hidden check shapes of a seed: the same ones for the same arguments.

    They divide among `world_size` ranks and differ from all other shapes, where possible in every
    letter; one size is no multiple of 8 unless all are promised to be. One that is not found in
    2000 tries is left out: the check shapes leave no room for it, or `Problem.admits` refuses most.
    """
    checks = [
        shape.dims
        for shape in problem.shapes
        if shape.kind == "check" and problem.divides(shape.dims, world_size)
    ]
    if not checks:
        return ()
    known = [dict(shape.dims) for shape in problem.shapes]
    sizes = {letter: _Sizes.of(problem, letter, checks, world_size) for letter in checks[0]}
    *smaller, largest = sorted(_bytes(problem, dims, world_size) for dims in checks)
    small = min(largest, _SMALL * max(smaller, default=largest))
    draw = random.Random(seed)
    found = []
    for name, limit, lean in zip(HIDDEN, (small, largest), (2.0, 1.0), strict=True):
        for attempt in range(_TRIES):
            dims = {letter: each.drawn(draw, lean) for letter, each in sizes.items()}
            if (
                dims not in known
                and (attempt >= _STRICT or _is_unlike(dims, sizes))
                and _is_ragged(dims, sizes)
                and problem.admits(dims)
                and _bytes(problem, dims, world_size) <= limit
            ):
                known.append(dims)
                found.append(Shape(name, dims, "check"))
                break
    return tuple(found)


def with_examples(problem: Problem) -> tuple[Problem, list[str]]:
    """The problem with hidden shapes as a verdict may draw them, and how they break the contract.

    For the task lint: an author should hear of it before a judge does.
    """
    try:
        wider = with_hidden(problem, _EXAMPLES, max(CHECK_WORLDS))
        found = breaches_of_sizes(wider)
        if len(wider.shapes) < len(problem.shapes) + len(HIDDEN):
            found.append("No check shapes can be drawn besides the stated ones.")
    except Exception as error:  # noqa: BLE001 - the problem's own code may raise anything
        return problem, [
            f"{blamed(error, inspect.getfile(type(problem)), 'It failed')}. {_RESTRICT}"
        ]
    return wider, [f"{breach} {_RESTRICT}" for breach in found]


def about(shape: Shape) -> str:
    """What an author should know of a shape where something is wrong; "" if it is a stated one."""
    if shape.name not in HIDDEN:
        return ""
    return f" This is at {', '.join(f'{k}={size}' for k, size in shape.dims.items())}. {_RESTRICT}"


def within_the_stated(description: Description) -> bool:
    """Whether every hidden shape of a description is a check shape between the stated ones.

    A description of an untrusted file is asked this: nothing else may come under these names.
    """
    stated = [s for s in description.shapes if s.kind == "check" and s.name not in HIDDEN]
    for shape in description.shapes:
        if shape.name not in HIDDEN:
            continue
        if shape.kind != "check" or not stated or set(shape.dims) != set(stated[0].dims):
            return False
        for letter, size in shape.dims.items():
            known = [other.dims[letter] for other in stated]
            if not min(known) <= size <= max(known):
                return False
    return True


@dataclass(frozen=True)
class _Sizes:
    """The sizes of one letter: the multiples of `step` from `least` to `most`.

    `stated` are those of check shapes; empty if there are no others.
    """

    least: int
    most: int
    step: int
    stated: frozenset[int]

    @classmethod
    def of(cls, problem: Problem, letter: str, checks: list[Dims], world_size: int) -> "_Sizes":
        """What the check shapes promise; `checks` are those that the world size divides."""
        promised = [shape.dims[letter] for shape in problem.shapes if shape.kind == "check"]
        step = math.gcd(*promised)
        if letter in problem.sharded:
            step = math.lcm(step, world_size)
        known = {dims[letter] for dims in checks}
        least, most = min(known), max(known)
        others = (most - least) // step + 1 > len(known)
        return cls(least, most, step, frozenset(known if others else ()))

    def drawn(self, draw: random.Random, lean: float) -> int:
        """One of them; with `lean` above 1 more often a small one."""
        count = (self.most - self.least) // self.step + 1
        return self.least + self.step * int(count * draw.random() ** lean)


def _is_unlike(dims: Dims, sizes: dict[str, _Sizes]) -> bool:
    """Whether no letter has a size that a check shape has, where it can have others."""
    return all(size not in sizes[letter].stated for letter, size in dims.items())


def _is_ragged(dims: Dims, sizes: dict[str, _Sizes]) -> bool:
    if all(each.step % RAGGED == 0 for each in sizes.values()):
        return True
    return any(size % RAGGED for size in dims.values())


def _bytes(problem: Problem, dims: Dims, world_size: int) -> int:
    """Bytes of one rank's inputs and outputs."""
    both = (problem.input_specs(dims, world_size), problem.output_specs(dims, world_size))
    specs = [spec for tensors in both for spec in tensors.values()]
    return sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs)
