"""Breaches of the problem contract that show without running the reference."""

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any, get_args

from problems.contract import Costs, OutputSpec, Peak, Problem, Shape, Tolerance
from problems.description import (
    COLLECTIVES,
    DTYPES,
    MAX_SHAPES,
    dtype_name,
)
from problems.fields import MAX_DIMS, MAX_EXTENT, MAX_TEXT, NAME
from problems.lint.plausible import implausible
from problems.scales import MOST, is_span

CHECK_WORLDS = (2, 4)


def breaches(problem: Problem) -> list[str]:
    """What is wrong with a problem's attributes, shapes, specs and costs; empty if nothing is.

    Each entry is a sentence that says what to change. Errors of the problem's methods propagate.
    """
    found = list(_attributes(problem))
    if not found:
        found = [*_names(problem), *_shapes(problem)]
    if not found:
        found = [*_signature(problem), *breaches_of_sizes(problem)]
    return found


def breaches_of_sizes(problem: Problem) -> list[str]:
    """What is wrong with a problem's specs and costs at its shapes; otherwise as `breaches`."""
    return list(_sizes(problem))


def _attributes(problem: Problem) -> Iterator[str]:
    texts = ("slug", "title", "category", "statement")
    for name in texts:
        value = getattr(problem, name, None)
        if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
            yield f"`{name}` must be a text of 1 to {MAX_TEXT} characters."
    for name, choices in (("tolerance", get_args(Tolerance)), ("peak", get_args(Peak))):
        if getattr(problem, name, None) not in choices:
            yield f"`{name}` must be one of {', '.join(choices)}."
    if problem.number is not None and type(problem.number) is not int:
        yield "`number` must be None, or the catalogue's number."
    if dtype_name(problem.dtype) not in DTYPES:
        yield f"`dtype` must be one of {', '.join(DTYPES)}."
    for name in ("input_names", "output_names", "sharded"):
        value = getattr(problem, name, None)
        if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
            yield f'`{name}` must be a tuple of names, such as ("x",).'
    if problem.scales is not None and not is_span(problem.scales):
        yield (
            "`scales` must be None or two integers (lowest, highest) with "
            f"-{MOST} <= lowest <= 0 <= highest <= {MOST}; got {problem.scales!r}."
        )
    shapes = getattr(problem, "shapes", None)
    if not isinstance(shapes, tuple) or not all(isinstance(shape, Shape) for shape in shapes):
        yield "`shapes` must be a tuple of check(...) and bench(...)."


def _names(problem: Problem) -> Iterator[str]:
    if not NAME.fullmatch(problem.slug):
        yield "`slug` must be a lower-case identifier of at most 40 characters."
    names = problem.input_names + problem.output_names
    for name in names:
        if not NAME.fullmatch(name):
            yield f"The tensor name {name!r} must be a lower-case identifier."
    if len(set(names)) < len(names):
        yield "Tensor names must differ, also between inputs and outputs: kernels bind to them."
    if not problem.input_names or not problem.output_names:
        yield "`input_names` and `output_names` must have at least one name each."
    for label in ("mutates", "replicated"):
        if unknown := set(getattr(problem, label)) - set(problem.input_names):
            yield f"`{label}` names no input: {', '.join(sorted(map(str, unknown)))}."
    if unknown := set(problem.peer_dims) - set(problem.output_names):
        yield f"`peer_dims` names no output: {', '.join(sorted(map(str, unknown)))}."


def _shapes(problem: Problem) -> Iterator[str]:
    shapes = problem.shapes
    names = [shape.name for shape in shapes]
    if len(set(names)) < len(names) or len(names) > MAX_SHAPES:
        yield f"Shapes need different names, and there may be at most {MAX_SHAPES}."
    letters = {frozenset(shape.dims) for shape in shapes}
    if len(letters) > 1:
        yield "All shapes must give a size to the same letters."
    for shape in shapes:
        sizes = list(shape.dims.values())
        if not NAME.fullmatch(shape.name) or not 0 < len(sizes) <= MAX_DIMS:
            yield f"Shape {shape.name!r} needs a lower-case name and 1 to {MAX_DIMS} letters."
        elif any(type(size) is not int or not 0 < size <= MAX_EXTENT for size in sizes):
            yield f"The sizes of shape {shape.name!r} must be positive integers."
        elif missing := [letter for letter in problem.sharded if letter not in shape.dims]:
            yield f"`sharded` names the letter {missing[0]!r}, which shape {shape.name!r} lacks."
        elif shape.kind == "check":
            for world_size in CHECK_WORLDS:
                if not problem.divides(shape.dims, world_size):
                    yield f"Check shape {shape.name!r} does not divide among {world_size} ranks."
    checks = [shape for shape in shapes if shape.kind == "check"]
    if "tiny" not in [shape.name for shape in checks]:
        yield 'There must be a check shape "tiny", small enough for a simulator.'
    if not any(size % 8 for shape in checks for size in shape.dims.values()):
        yield "One check shape must be ragged: give it a size that is no multiple of 8."
    if not any(shape.kind == "bench" for shape in shapes):
        yield "There must be at least one bench shape."


def _signature(problem: Problem) -> Iterator[str]:
    inputs = dict.fromkeys(problem.input_names)
    try:
        inspect.signature(problem.reference).bind(None, **inputs)
    except TypeError as error:
        names = ", ".join(problem.input_names)
        yield f"`reference` must take (group, {names}): {error}."


def _sizes(problem: Problem) -> Iterator[str]:
    for shape in problem.shapes:
        if not problem.admits(shape.dims):
            yield f"`admits` refuses shape {shape.name!r}: let it take what is stated."
        for world_size in CHECK_WORLDS:
            if not problem.divides(shape.dims, world_size):
                continue
            where = f"of shape {shape.name!r} at {world_size} ranks"
            inputs = problem.input_specs(shape.dims, world_size)
            outputs = problem.output_specs(shape.dims, world_size)
            malformed = [
                *_specs("input_specs", inputs, problem.input_names, where),
                *_specs("output_specs", outputs, problem.output_names, where),
            ]
            if malformed:
                yield from malformed
                continue
            yield from _parts(problem, outputs, where)
            costs = problem.costs(shape.dims, world_size)
            wrong = [*_costs(costs, where)] or [
                *implausible(costs, inputs, outputs, world_size, where)
            ]
            yield from wrong
    if problem.make_inputs.__func__ is not Problem.make_inputs:  # type: ignore[attr-defined]
        yield from _drawn(problem)


def _specs(method: str, specs: object, names: tuple[str, ...], where: str) -> Iterator[str]:
    if not isinstance(specs, dict) or set(specs) != set(names):
        yield f"`{method}` {where} must be a dict with {', '.join(names)}."
        return
    for name, spec in specs.items():
        good = (
            isinstance(spec, OutputSpec)
            and dtype_name(spec.dtype) in DTYPES
            and type(spec.shape) is tuple
            and all(type(size) is int and size > 0 for size in spec.shape)
        )
        if not good:
            yield f"`{method}` {where}: {name!r} must be self.spec(sizes...), got {spec}."


def _parts(problem: Problem, outputs: object, where: str) -> Iterator[str]:
    for name, dim in problem.peer_dims.items():
        sizes = outputs[name].shape if isinstance(outputs, dict) and name in outputs else ()
        if type(dim) is not int or not 0 <= dim < len(sizes):
            yield f"`peer_dims` {where}: {name!r} has no dimension {dim}."


def _costs(costs: object, where: str) -> Iterator[str]:
    if not isinstance(costs, Costs):
        yield f"`costs` {where} must be a Costs, got {type(costs).__name__}."
        return
    values = (costs.flops, costs.nvlink_bytes, costs.hbm_bytes)
    if any(not math.isfinite(value) or value < 0 for value in values) or not any(values):
        yield f"`costs` {where} must be finite, not negative and not all zero: {values}."
    work = costs.baseline
    if work.collective not in (None, *COLLECTIVES) or (not work.collective and not work.gemm):
        yield f"The baseline {where} needs a GEMM or one of {', '.join(COLLECTIVES)}: {work}."
    collective = (work.collective_bytes,) if work.collective else ()
    sizes = (work.gemm or ()) + collective + work.copies
    if any(type(size) is not int or size <= 0 for size in sizes):
        yield f"The sizes of the baseline {where} must be positive integers: {work}."


def _drawn(problem: Problem) -> Iterator[str]:
    """A custom make_inputs must draw what input_specs says."""
    dims = next(shape.dims for shape in problem.shapes if shape.name == "tiny")
    make: Callable[..., Any] = problem.make_inputs
    inputs = make(0, CHECK_WORLDS[0], 1, dims)
    for name, spec in problem.input_specs(dims, CHECK_WORLDS[0]).items():
        tensor = inputs.get(name) if isinstance(inputs, dict) else None
        if tensor is None or (tuple(tensor.shape), tensor.dtype) != (spec.shape, spec.dtype):
            got = None if tensor is None else f"{tensor.dtype}{list(tensor.shape)}"
            yield f"`make_inputs` must give {name!r} as {spec.dtype}{list(spec.shape)}, got {got}."
