"""A problem without its code: what the API, the agent, the judge and the comparison need to know.

A custom problem's description comes from an untrusted process as JSON; `from_json` accepts nothing
that is out of form.
"""

import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

import torch

from pk_runtime.baseline import BaselineWork
from problems.contract import (
    HIDDEN,
    Costs,
    Dims,
    OutputSpec,
    Peak,
    Problem,
    Shape,
    ShapeKind,
    Tolerance,
)
from problems.errors import UnknownShape
from problems.fields import MAX_DIMS, MAX_EXTENT, MAX_TEXT, NAME, Fields
from problems.scales import exponent, is_span, span

DTYPES: Mapping[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn,
        torch.float8_e5m2, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64,
        torch.bool, torch.complex64, torch.complex128,
    )
}  # fmt: skip
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
MAX_SHAPES = 64
MAX_WORLD = 64

Specs = Mapping[str, OutputSpec]


@dataclass(frozen=True)
class ShapeInfo:
    """One shape of a problem at the description's world size: tensors of one rank, and costs."""

    name: str
    kind: ShapeKind
    dims: Dims
    inputs: Specs
    outputs: Specs
    costs: Costs


@dataclass(frozen=True)
class Description:
    """Everything about a problem that is not code, at one world size; see `Problem`.

    `reference_code` is the text of its reference, for people and models to read.
    """

    number: int | None
    slug: str
    title: str
    category: str
    statement: str
    tolerance: Tolerance
    dtype: torch.dtype
    peak: Peak
    mutates: frozenset[str]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    peer_dims: Mapping[str, int]
    world_size: int
    shapes: tuple[ShapeInfo, ...]
    reference_code: str = ""
    scales: tuple[int, int] | None = None

    def exponent(self, shape: ShapeInfo, seed: int) -> int:
        """The k of the 2^k that the inputs of this seed are scaled by; see `problems.scales`."""
        return exponent(span(self.scales, shape.inputs, shape.outputs), seed)

    def shape(self, name: str) -> ShapeInfo:
        """The shape of that name. Raises UnknownShape, which lists the known ones."""
        for shape in self.shapes:
            if shape.name == name:
                return shape
        raise UnknownShape(self.slug, name, [shape.name for shape in self.shapes])

    def to_json(self) -> dict[str, Any]:
        """The description as JSON."""
        return {
            "number": self.number,
            "slug": self.slug,
            "title": self.title,
            "category": self.category,
            "statement": self.statement,
            "tolerance": self.tolerance,
            "dtype": dtype_name(self.dtype),
            "peak": self.peak,
            "mutates": sorted(self.mutates),
            "input_names": list(self.input_names),
            "output_names": list(self.output_names),
            "peer_dims": dict(self.peer_dims),
            "world_size": self.world_size,
            "shapes": [_shape_to_json(shape) for shape in self.shapes],
            "reference_code": self.reference_code or None,
            "scales": None if self.scales is None else list(self.scales),
        }

    @classmethod
    def from_json(cls, data: object) -> "Description":
        """Read what `to_json` wrote. Raises WireError, which names the field that is wrong."""
        reader = Fields(data)
        most = MAX_SHAPES + len(HIDDEN)
        description = cls(
            number=reader.optional("number", reader.integer),
            slug=reader.name("slug"),
            title=reader.text("title", 200),
            category=reader.text("category", 200),
            statement=reader.text("statement", MAX_TEXT),
            tolerance=cast(Tolerance, reader.choice("tolerance", get_args(Tolerance))),
            dtype=DTYPES[reader.choice("dtype", tuple(DTYPES))],
            peak=cast(Peak, reader.choice("peak", get_args(Peak))),
            mutates=frozenset(reader.names("mutates")),
            input_names=reader.names("input_names"),
            output_names=reader.names("output_names"),
            peer_dims=reader.integers("peer_dims", limit=MAX_DIMS),
            world_size=reader.integer("world_size", low=1, high=MAX_WORLD),
            shapes=tuple(_shape_from_json(item) for item in reader.items("shapes", most)),
            reference_code=reader.optional("reference_code", reader.long_text) or "",
            scales=reader.optional("scales", lambda key: _scales(reader, key)),
        )
        _require_consistent(description, reader)
        return description


def describe(problem: Problem, world_size: int) -> Description:
    """The description of a problem; shapes that the world size does not divide are left out."""
    return Description(
        number=problem.number,
        slug=problem.slug,
        title=problem.title,
        category=problem.category,
        statement=problem.statement,
        tolerance=problem.tolerance,
        dtype=problem.dtype,
        peak=problem.peak,
        mutates=frozenset(problem.mutates),
        input_names=problem.input_names,
        output_names=problem.output_names,
        peer_dims=dict(problem.peer_dims),
        world_size=world_size,
        shapes=tuple(
            _shape_info(problem, shape, world_size)
            for shape in problem.shapes
            if problem.divides(shape.dims, world_size)
        ),
        reference_code=_reference_code(problem),
        scales=problem.scales,
    )


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype on the wire: "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def _reference_code(problem: Problem) -> str:
    """The text of `reference`; empty if there is no file to read it from."""
    try:
        return textwrap.dedent(inspect.getsource(type(problem).reference))[:MAX_TEXT]
    except OSError:
        return ""


def _scales(reader: Fields, key: str) -> tuple[int, int]:
    value = tuple(reader.items(key, 2))
    if not is_span(value):
        raise reader.error(key, "must be two integers, the lowest and the highest exponent")
    return value


def _shape_info(problem: Problem, shape: Shape, world_size: int) -> ShapeInfo:
    return ShapeInfo(
        name=shape.name,
        kind=shape.kind,
        dims=dict(shape.dims),
        inputs=problem.input_specs(shape.dims, world_size),
        outputs=problem.output_specs(shape.dims, world_size),
        costs=problem.costs(shape.dims, world_size),
    )


def _shape_to_json(shape: ShapeInfo) -> dict[str, Any]:
    work = shape.costs.baseline
    return {
        "name": shape.name,
        "kind": shape.kind,
        "dims": dict(shape.dims),
        "inputs": _specs_to_json(shape.inputs),
        "outputs": _specs_to_json(shape.outputs),
        "flops": shape.costs.flops,
        "nvlink_bytes": shape.costs.nvlink_bytes,
        "hbm_bytes": shape.costs.hbm_bytes,
        "baseline": {
            "gemm": None if work.gemm is None else list(work.gemm),
            "collective": work.collective,
            "collective_bytes": work.collective_bytes,
            "copies": list(work.copies),
        },
    }


def _specs_to_json(specs: Specs) -> dict[str, Any]:
    return {
        name: {"shape": list(spec.shape), "dtype": dtype_name(spec.dtype)}
        for name, spec in specs.items()
    }


def _shape_from_json(data: object) -> ShapeInfo:
    reader = Fields(data, "shapes")
    work = Fields(reader.value("baseline", dict), "baseline")
    gemm = work.data.get("gemm")
    sizes = None if gemm is None else work.sizes("gemm")
    if sizes is not None and len(sizes) != 3:
        raise work.error("gemm", "must be m, n and k")
    collective = work.data.get("collective")
    if collective is not None:
        collective = work.choice("collective", COLLECTIVES)
    return ShapeInfo(
        name=reader.name("name"),
        kind=cast(ShapeKind, reader.choice("kind", get_args(ShapeKind))),
        dims=reader.integers("dims", limit=MAX_EXTENT),
        inputs=_specs_from_json(reader, "inputs"),
        outputs=_specs_from_json(reader, "outputs"),
        costs=Costs(
            reader.cost("flops"),
            reader.cost("nvlink_bytes"),
            reader.cost("hbm_bytes"),
            BaselineWork(
                None if sizes is None else (sizes[0], sizes[1], sizes[2]),
                collective,
                work.integer("collective_bytes"),
                work.optional("copies", work.sizes) or (),
            ),
        ),
    )


def _require_consistent(description: Description, reader: Fields) -> None:
    """What a comparison or a cost model relies on, beyond the form of each field."""
    names = description.input_names + description.output_names
    if len(set(names)) < len(names) or not description.output_names:
        raise reader.error("input_names", "and output_names must differ, and outputs must exist")
    if not description.mutates <= set(description.input_names):
        raise reader.error("mutates", "must name inputs")
    if len({shape.name for shape in description.shapes}) < len(description.shapes):
        raise reader.error("shapes", "must have different names")
    for shape in description.shapes:
        if set(shape.inputs) != set(description.input_names):
            raise reader.error("inputs", f"of shape {shape.name} must be those of input_names")
        if set(shape.outputs) != set(description.output_names):
            raise reader.error("outputs", f"of shape {shape.name} must be those of output_names")
        for name, dim in description.peer_dims.items():
            if name not in shape.outputs or dim >= len(shape.outputs[name].shape):
                raise reader.error("peer_dims", "must name outputs and their dimensions")
        costs = shape.costs
        if not (costs.flops or costs.nvlink_bytes or costs.hbm_bytes):
            raise reader.error("flops", "and the bytes cannot all be zero")
        work = costs.baseline
        collective = [work.collective_bytes] if work.collective else []
        sizes = [*(work.gemm or ()), *collective, *work.copies]
        if not sizes or min(sizes) < 1:
            raise reader.error("baseline", "needs positive sizes of a GEMM, a collective or both")


def _specs_from_json(reader: Fields, key: str) -> dict[str, OutputSpec]:
    specs = {}
    for name, item in reader.value(key, dict).items():
        inner = Fields(item, f"{key}.{name}")
        if not NAME.fullmatch(name):
            raise inner.error("name", "is not a lower-case identifier")
        specs[name] = OutputSpec(inner.sizes("shape"), DTYPES[inner.choice("dtype", tuple(DTYPES))])
    return specs
