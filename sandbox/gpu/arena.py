"""Where the tensors of one case lie in one rank's memory: sets of inputs and outputs, and guards.

A case is a shape on W ranks. Each rank has one arena; all arenas of a case have the same layout,
which judge, workers and runners each compute from the same specs. Between any two tensors lie guard
bytes that no kernel has a reason to touch. No torch here: runners start without it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

GUARD_BYTES = 4096
GUARD = 0xA5
POISON = 0xFF  # NaN in every floating-point type, -1 in integers
_ALIGNMENT = 256
_ROW_BYTES = 16  # rows start at multiples of this: what TMA asks for
_LARGEST_BYTES = 32 << 30

# name: (bytes per element, number in the C interface)
DTYPES: Mapping[str, tuple[int, int]] = {
    "bfloat16": (2, 0),
    "float16": (2, 1),
    "float32": (4, 2),
    "int32": (4, 3),
}


class ArenaError(ValueError):
    """Tensors that no kernel can be given: an unknown dtype, or more memory than allowed."""


@dataclass(frozen=True)
class Spec:
    """Shape and dtype ("bfloat16") of one tensor on one rank."""

    shape: tuple[int, ...]
    dtype: str

    @staticmethod
    def from_json(data: Any) -> "Spec":
        """Reads [shape, dtype]; ArenaError if it is not that."""
        try:
            shape, dtype = data
            return Spec(tuple(int(size) for size in shape), str(dtype))
        except (TypeError, ValueError):
            raise ArenaError(f"{data!r} is not a shape and a dtype") from None

    def to_json(self) -> list[Any]:
        """The spec as JSON."""
        return [list(self.shape), self.dtype]


@dataclass(frozen=True)
class Place:
    """One tensor in an arena. `pitch` is in elements from row to row; rows are padded to 16 bytes.

    As kernels see it: `planes` x `rows` x `cols`, all but the last two dimensions merged.
    """

    offset: int
    spec: Spec

    @property
    def cols(self) -> int:
        """Elements of a row."""
        return self.spec.shape[-1]

    @property
    def rows(self) -> int:
        """Rows of a plane."""
        return self.spec.shape[-2] if len(self.spec.shape) > 1 else 1

    @property
    def planes(self) -> int:
        """All leading dimensions together."""
        return prod(self.spec.shape[:-2])

    @property
    def pitch(self) -> int:
        """Elements from one row to the next."""
        unit = _ROW_BYTES // self.itemsize
        return -(-self.cols // unit) * unit

    @property
    def itemsize(self) -> int:
        """Bytes of an element; ArenaError for a dtype that kernels have no number for."""
        if self.spec.dtype not in DTYPES:
            known = ", ".join(DTYPES)
            raise ArenaError(f"a tensor is {self.spec.dtype}; GPU kernels bind {known}")
        return DTYPES[self.spec.dtype][0]

    @property
    def nbytes(self) -> int:
        """Bytes from the first element to the end of the last row, padding included."""
        return self.planes * self.rows * self.pitch * self.itemsize


Specs = Mapping[str, Spec]


@dataclass(frozen=True)
class Arena:
    """The layout of one rank's memory; `sets[i]` has every input and output of set i by name."""

    sets: tuple[Mapping[str, Place], ...]
    nbytes: int

    def guards(self) -> Iterator[tuple[int, int]]:
        """(first byte, end) of everything between tensors, in order."""
        at = 0
        for places in self.sets:
            for place in places.values():
                yield at, place.offset
                at = place.offset + place.nbytes
        yield at, self.nbytes


def lay_out(inputs: Specs, outputs: Specs, sets: int) -> Arena:
    """The arena of a case. Raises ArenaError for an unknown dtype, or for its size."""
    for name, spec in {**inputs, **outputs}.items():
        if spec.dtype not in DTYPES:
            known = ", ".join(DTYPES)
            raise ArenaError(f"tensor {name!r} is {spec.dtype}; GPU kernels bind {known}")
        if not spec.shape or min(spec.shape) < 1:
            raise ArenaError(f"tensor {name!r} has shape {list(spec.shape)}: nothing to bind")
    at = 0
    found = []
    for number in range(sets):
        places = {}
        for name, spec in {**inputs, **outputs}.items():
            # Sets start at different distances, so that nothing can rely on how they lie.
            at = _aligned(at + GUARD_BYTES + number % 7 * _ALIGNMENT)
            places[name] = Place(at, spec)
            at += places[name].nbytes
        found.append(places)
    nbytes = at + GUARD_BYTES
    if nbytes > _LARGEST_BYTES:
        raise ArenaError(f"{sets} sets of these tensors take {nbytes} bytes on every rank")
    return Arena(tuple(found), nbytes)


def set_bytes(inputs: Specs, outputs: Specs) -> int:
    """Bytes of one set's tensors on one rank."""
    return sum(Place(0, spec).nbytes for spec in (*inputs.values(), *outputs.values()))


def specs_from_json(data: Any) -> dict[str, Spec]:
    """Reads {name: [shape, dtype]}; ArenaError if it is not that."""
    if not isinstance(data, dict):
        raise ArenaError("specs must map names to shapes and dtypes")
    return {str(name): Spec.from_json(item) for name, item in data.items()}


def specs_to_json(specs: Specs) -> dict[str, Any]:
    """{name: [shape, dtype]}."""
    return {name: spec.to_json() for name, spec in specs.items()}


def _aligned(at: int) -> int:
    return -(-at // _ALIGNMENT) * _ALIGNMENT
