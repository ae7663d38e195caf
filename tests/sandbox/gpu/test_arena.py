"""The layout of a case's memory: aligned, disjoint, guarded, the same wherever it is computed."""

import itertools
import json

import pytest
import torch

from problems.contract import Problem
from problems.registry import catalogue
from sandbox.gpu.arena import (
    DTYPES,
    GUARD_BYTES,
    ArenaError,
    Spec,
    lay_out,
    set_bytes,
    specs_from_json,
    specs_to_json,
)
from sandbox.gpu.case import specs_of
from sandbox.gpu.memory import HostBlock, view

INPUTS = {"a": Spec((100, 33), "bfloat16"), "i": Spec((7,), "int32")}
OUTPUTS = {"c": Spec((2, 3, 129), "float32")}


def test_tensors_are_aligned_disjoint_and_guarded() -> None:
    arena = lay_out(INPUTS, OUTPUTS, 5)
    end = 0
    for places in arena.sets:
        for place in places.values():
            assert place.offset % 256 == 0
            assert place.offset - end >= GUARD_BYTES
            assert place.pitch * place.itemsize % 16 == 0
            end = place.offset + place.nbytes
    assert arena.nbytes - end >= GUARD_BYTES
    inside = sum(place.nbytes for places in arena.sets for place in places.values())
    assert sum(b - a for a, b in arena.guards()) + inside == arena.nbytes


def test_sets_do_not_lie_at_equal_distances() -> None:
    starts = [places["a"].offset for places in lay_out(INPUTS, OUTPUTS, 6).sets]
    assert len({b - a for a, b in itertools.pairwise(starts)}) > 1


def test_every_process_computes_the_same_layout() -> None:
    inputs, outputs = (
        specs_from_json(json.loads(json.dumps(specs_to_json(s)))) for s in (INPUTS, OUTPUTS)
    )
    assert lay_out(inputs, outputs, 4) == lay_out(INPUTS, OUTPUTS, 4)


def test_views_are_where_the_layout_says() -> None:
    arena = lay_out(INPUTS, OUTPUTS, 2)
    block = HostBlock(arena.nbytes)
    block.bytes.fill_(7)
    place = arena.sets[1]["c"]
    tensor = view(block.bytes, place)
    assert tensor.shape == (2, 3, 129)
    assert tensor.dtype == torch.float32
    assert tensor.stride() == (3 * 132, 132, 1)
    tensor.zero_()
    raw = block.bytes[place.offset : place.offset + place.nbytes].view(6, 132 * 4)
    assert bool((raw[:, : 129 * 4] == 0).all())
    assert bool((raw[:, 129 * 4 :] == 7).all()), "rows are padded"
    assert all(bool((block.bytes[a:b] == 7).all()) for a, b in arena.guards())
    assert view(block.bytes, arena.sets[0]["i"]).shape == (7,)


def test_tensors_that_no_kernel_binds_are_refused() -> None:
    with pytest.raises(ArenaError, match="'a' is float64; GPU kernels bind bfloat16"):
        lay_out({"a": Spec((4,), "float64")}, {}, 1)
    with pytest.raises(ArenaError, match="nothing to bind"):
        lay_out({"a": Spec((4, 0), "int32")}, {}, 1)
    with pytest.raises(ArenaError, match="bytes on every rank"):
        lay_out({"a": Spec((1 << 20, 1 << 16), "int32")}, {}, 1)
    for bad in (None, {"a": 1}, {"a": [[2], "int32", 3]}, {"a": [["x"], "int32"]}):
        with pytest.raises(ArenaError):
            specs_from_json(bad)


@pytest.mark.parametrize("problem", catalogue(), ids=lambda p: p.slug)
def test_every_problem_of_the_catalogue_has_a_layout(problem: Problem) -> None:
    for shape in problem.shapes:
        if problem.divides(shape.dims, 4):
            inputs = specs_of(problem.input_specs(shape.dims, 4))
            outputs = specs_of(problem.output_specs(shape.dims, 4))
            if not {s.dtype for s in (*inputs.values(), *outputs.values())} <= set(DTYPES):
                continue
            assert lay_out(inputs, outputs, 1).nbytes > set_bytes(inputs, outputs)
