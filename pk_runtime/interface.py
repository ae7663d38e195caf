"""The shapes a kernel takes and returns, as formulas over the problem's letters and W.

A bundle carries them so that its kernel can be called on tensors of any legal size: the letters
are solved from the inputs' shapes, and the outputs' shapes follow.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

_AXIS = re.compile(r"(?P<letter>[A-Za-z_][A-Za-z0-9_]*)(?P<by>[*/]W)?|(?P<size>[0-9]{1,12})")
_MAX_TENSORS, _MAX_AXES = 32, 8
WORLD = "W"

Axis = str
TensorShape = tuple[tuple[int, ...], torch.dtype]


class InterfaceError(ValueError):
    """Shapes that do not fit together: which tensor, which axis, what was expected."""


@dataclass(frozen=True)
class Tensors:
    """One tensor of the interface: an axis is a number, "W", or a letter, "M", "M/W" or "M*W"."""

    axes: tuple[Axis, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Sample:
    """One known instance: the letters' values, W, and every tensor's shape on one rank."""

    dims: Mapping[str, int]
    world_size: int
    inputs: Mapping[str, TensorShape]
    outputs: Mapping[str, TensorShape]


@dataclass(frozen=True)
class Interface:
    """Inputs and outputs of one rank, by name, in the problem's order."""

    inputs: Mapping[str, Tensors]
    outputs: Mapping[str, Tensors]

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        return {
            side: [
                {"name": name, "shape": list(spec.axes), "dtype": _dtype_name(spec.dtype)}
                for name, spec in tensors.items()
            ]
            for side, tensors in (("inputs", self.inputs), ("outputs", self.outputs))
        }

    @staticmethod
    def from_json(data: object) -> "Interface":
        """Reads what `to_json` wrote; InterfaceError on a wrong form."""
        if not isinstance(data, dict) or set(data) != {"inputs", "outputs"}:
            raise InterfaceError("an interface has exactly the fields inputs and outputs")
        return Interface(_tensors(data["inputs"], "inputs"), _tensors(data["outputs"], "outputs"))

    @staticmethod
    def infer(samples: Sequence[Sample]) -> "Interface":
        """The formulas that fit all samples; InterfaceError for an axis that no formula fits.

        Samples that differ in every letter and in W make the answer unambiguous.
        """
        if not samples:
            raise InterfaceError("an interface cannot be inferred from no samples")
        first = samples[0]
        for sample in samples:
            if set(sample.inputs) != set(first.inputs) or set(sample.outputs) != set(first.outputs):
                raise InterfaceError("the samples do not have the same tensors")
        inputs = {n: _fit(n, [(s, s.inputs[n]) for s in samples]) for n in first.inputs}
        outputs = {n: _fit(n, [(s, s.outputs[n]) for s in samples]) for n in first.outputs}
        known = {_letter(axis) for spec in inputs.values() for axis in spec.axes}
        for name, spec in outputs.items():
            for axis in spec.axes:
                if _letter(axis) not in known | {"", WORLD}:
                    raise InterfaceError(f"output {name!r}: no input has the letter of {axis!r}")
        return Interface(inputs, outputs)

    def solve(self, shapes: Mapping[str, Sequence[int]], world_size: int) -> dict[str, int]:
        """The letters' values from one rank's input shapes; InterfaceError if they contradict."""
        dims: dict[str, int] = {WORLD: world_size}
        if set(shapes) != set(self.inputs):
            wanted, given = ", ".join(self.inputs), ", ".join(shapes)
            raise InterfaceError(f"the inputs are {wanted}, not {given or 'none'}")
        for name, spec in self.inputs.items():
            shape = tuple(shapes[name])
            if len(shape) != len(spec.axes):
                form = ", ".join(spec.axes)
                raise InterfaceError(f"input {name!r} is [{form}], not of shape {list(shape)}")
            for axis, size in zip(spec.axes, shape, strict=True):
                letter = _letter(axis)
                value = size * world_size if axis.endswith("/W") else size
                if axis.endswith("*W") and size % world_size == 0:
                    value = size // world_size
                if letter:
                    dims.setdefault(letter, value)
                if _size(axis, dims) != size:
                    raise InterfaceError(
                        f"input {name!r}: axis {axis} is {size}, which does not fit the other "
                        f"axes or W = {world_size}"
                    )
        return dims

    def output_shapes(self, dims: Mapping[str, int]) -> dict[str, TensorShape]:
        """Every output's shape and dtype on one rank, from what `solve` returned."""
        return {
            name: (tuple(_size(axis, dims) for axis in spec.axes), spec.dtype)
            for name, spec in self.outputs.items()
        }


def _fit(name: str, cases: Sequence[tuple[Sample, TensorShape]]) -> Tensors:
    shape, dtype = cases[0][1]
    if any(len(s) != len(shape) or d != dtype for _, (s, d) in cases):
        raise InterfaceError(f"tensor {name!r} changes its rank or dtype between shapes")
    axes = []
    for number in range(len(shape)):
        for axis in _formulas(cases[0][0].dims, shape[number]):
            if all(
                _size(axis, {**s.dims, WORLD: s.world_size}) == sh[number] for s, (sh, _) in cases
            ):
                axes.append(axis)
                break
        else:
            raise InterfaceError(f"tensor {name!r}: no formula fits axis {number}")
    return Tensors(tuple(axes), dtype)


def _formulas(letters: Iterable[str], size: int) -> Iterable[Axis]:
    letters = list(letters)
    yield from letters
    yield from (f"{letter}/W" for letter in letters)
    yield WORLD
    yield from (f"{letter}*W" for letter in letters)
    yield str(size)


def _letter(axis: Axis) -> str:
    match = _AXIS.fullmatch(axis)
    return (match["letter"] or "") if match else ""


def _size(axis: Axis, dims: Mapping[str, int]) -> int:
    match = _AXIS.fullmatch(axis)
    if match is None:
        raise InterfaceError(f"{axis!r} is no axis")
    if match["size"]:
        return int(match["size"])
    value = dims[match["letter"]]
    if match["by"] == "/W":
        return value // dims[WORLD] if value % dims[WORLD] == 0 else -1
    return value * dims[WORLD] if match["by"] else value


def _tensors(data: object, side: str) -> dict[str, Tensors]:
    if not isinstance(data, list) or not 0 < len(data) <= _MAX_TENSORS:
        raise InterfaceError(f"{side} must be a list of 1 to {_MAX_TENSORS} tensors")
    tensors: dict[str, Tensors] = {}
    for item in data:
        if not isinstance(item, dict) or set(item) != {"name", "shape", "dtype"}:
            raise InterfaceError(f"{side}: a tensor has exactly the fields name, shape and dtype")
        name, axes, dtype = item["name"], item["shape"], item["dtype"]
        if not isinstance(name, str) or not name.isidentifier() or name in tensors:
            raise InterfaceError(f"{side}: {name!r} is no name, or one used twice")
        if not isinstance(axes, list) or len(axes) > _MAX_AXES:
            raise InterfaceError(f"{side}: the shape of {name!r} is not a short list")
        if not all(isinstance(axis, str) and _AXIS.fullmatch(axis) for axis in axes):
            raise InterfaceError(f"{side}: the shape of {name!r} has an axis of unknown form")
        kind = getattr(torch, dtype, None) if isinstance(dtype, str) else None
        if not isinstance(kind, torch.dtype):
            raise InterfaceError(f"{side}: the dtype of {name!r} is unknown")
        tensors[name] = Tensors(tuple(axes), kind)
    return tensors


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
