"""The facts of a job that never change: problem, machine, roofline, as text for a model.

They come first in the prompt and are the same in every call, so that providers can cache them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from pk_runtime.baseline import baseline_us
from pk_runtime.sheet import Sheet
from pk_runtime.target import Target
from problems.answers.tolerance import (
    MAX_FACTOR,
    MAX_FLOOR,
    MAX_SPREAD,
    RELATIVE,
    RMS_FACTOR,
    RMS_FLOOR,
)
from problems.contract import OutputSpec, Tolerance
from problems.description import Description, ShapeInfo, dtype_name
from problems.roofline import roofline_of
from problems.scales import span

TOLERANCE_RULES: Mapping[Tolerance, str] = {
    "T0": "every output must be bit-exact.",
    "T1": (
        "outputs are compared with an fp64 golden, relative to the error that PyTorch + NCCL make: "
        f"the largest error may be max({MAX_FACTOR:g} x theirs, {MAX_SPREAD:g} x their rms error, "
        f"{MAX_FLOOR:g} u rms), the rms error {RMS_FACTOR:g} x theirs + {RMS_FLOOR:g} u rms (u: "
        "unit roundoff of the dtype). Accumulate in fp32 and round once."
    ),
    "T2": "each error at most {:g} of the fp64 value + {:g} rms.".format(*RELATIVE["T2"]),
    "T3": "each error at most {:g} of the fp64 value + {:g} rms.".format(*RELATIVE["T3"]),
}


def problem_text(problem: Description) -> str:
    """Say what must be computed, on which shapes, how exactly."""
    lines = [
        f"# Problem: {problem.title} ({problem.slug}), {problem.world_size} ranks",
        problem.statement.strip(),
        f"Tolerance {problem.tolerance}: {TOLERANCE_RULES[problem.tolerance]}",
        f"Inputs that may be overwritten: {', '.join(sorted(problem.mutates)) or 'none'}.",
        "Shapes, with the tensors of one rank ('check' shapes decide correctness, at several world "
        "sizes, seeds and schedules, called back to back; 'bench' shapes are timed; a result that "
        "counts is also checked at sizes nobody knows beforehand, each between the least and the "
        "largest of the check shapes and a multiple of what divides all of them):",
    ]
    low, high = span(problem.scales, problem.shapes[0].inputs, problem.shapes[0].outputs)
    if low < high:
        lines.insert(
            -1,
            f"Inputs of a launch are multiplied by a power of two from 2^{low} to 2^{high}, "
            "another one each time: no absolute threshold is right.",
        )
    for shape in problem.shapes:
        dims = " ".join(f"{name}={size}" for name, size in shape.dims.items())
        lines.append(
            f"- {shape.name} ({shape.kind}): {dims}; "
            f"{_tensors(shape.inputs)} -> {_tensors(shape.outputs)}"
        )
    return "\n".join(lines)


def _tensors(specs: Mapping[str, OutputSpec]) -> str:
    return " ".join(
        f"{name}[{','.join(map(str, spec.shape))}] {dtype_name(spec.dtype)}"
        for name, spec in specs.items()
    )


def machine_text(target: Target) -> str:
    """List every number of the hardware sheet; names carry the units."""
    lines = [
        f"# Machine: target {target}, {target.sheet.title}",
        "'simulator' is what the simulator charges (GB = 1e9 bytes, rates per microsecond); the "
        "tables are measurements, lists of [size, value].",
        *_numbers(target.sheet),
    ]
    return "\n".join(lines)


def _numbers(sheet: Sheet) -> Iterator[str]:
    for field in dataclasses.fields(sheet):
        value = getattr(sheet, field.name)
        if dataclasses.is_dataclass(value):
            yield f"- {field.name}: {_record(value)}"
        elif isinstance(value, tuple):
            yield from (f"- {field.name}: {_record(item)}" for item in value)
        else:
            yield f"- {field.name}: {value}"


def _record(value: object) -> str:
    if not dataclasses.is_dataclass(value):
        return _plain(value)
    pairs = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    return ", ".join(f"{name}={_plain(item)}" for name, item in pairs)


def _plain(value: object) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:g}"
    if isinstance(value, tuple):
        return "[" + " ".join(_plain(item) for item in value) + "]"
    return f"({_record(value)})" if dataclasses.is_dataclass(value) else str(value)


def roofline_text(problem: Description, target: Target, asked: str | None) -> str:
    """Give, for each shape that is timed, the least possible time and what overlap can gain."""
    lines = [
        "# Roofline of the timed shapes (microseconds per rank, at nominal peaks)",
        "The bound assumes that compute, NVLink and HBM overlap perfectly; 'serial' is their sum.",
    ]
    for shape in problem.shapes:
        if shape.name == asked or (asked is None and shape.kind == "bench"):
            lines.append(_roofline_line(problem, shape, target))
    return "\n".join(lines)


def _roofline_line(problem: Description, shape: ShapeInfo, target: Target) -> str:
    bound = roofline_of(shape.costs, problem.peak, target.sheet)
    terms = ", ".join(f"{name} {us:.1f}" for name, us in bound.terms_us.items())
    baseline = baseline_us(shape.costs.baseline, target.sheet)
    kind = "simulated" if target.sheet.calibrated else "uncalibrated"
    return (
        f"- {shape.name}: {terms}; bound {bound.us:.1f} ({bound.binding}), "
        f"serial {sum(bound.terms_us.values()):.1f}; PyTorch + NCCL {baseline:.1f} ({kind}), "
        f"so at most {baseline / bound.us:.2f}x over it"
    )
