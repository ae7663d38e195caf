"""Costs that a problem's own tensors contradict are refused; those of the catalogue are not."""

from dataclasses import replace

import pytest

from pk_runtime.baseline import BaselineWork
from problems.lint.plausible import implausible
from problems.registry import catalogue, get

DIMS = {"M": 1024, "N": 1024}


@pytest.mark.parametrize("problem", catalogue(), ids=lambda problem: problem.slug)
def test_the_catalogue_is_plausible(problem) -> None:  # type: ignore[no-untyped-def]
    for shape in problem.shapes:
        for world in (2, 4, 8):
            if problem.divides(shape.dims, world):
                inputs = problem.input_specs(shape.dims, world)
                outputs = problem.output_specs(shape.dims, world)
                costs = problem.costs(shape.dims, world)
                assert list(implausible(costs, inputs, outputs, world, shape.name)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hbm_bytes": 1024.0}, "fewer than its outputs"),
        ({"hbm_bytes": 1e12}, "hbm_bytes are more"),
        ({"nvlink_bytes": 1e12}, "nvlink_bytes are more"),
        ({"flops": 1e15}, "flops are more"),
        ({"baseline": BaselineWork(None, "all_reduce", 10**12)}, "handicap"),
        ({"baseline": BaselineWork(None, "all_reduce", 2, (10**12,))}, "handicap"),
        ({"baseline": BaselineWork((8192, 8192, 8192), "all_reduce", 2)}, "larger than"),
    ],
)
def test_each_contradiction_is_named(change: dict[str, object], words: str) -> None:
    problem = get("allreduce")
    costs = replace(problem.costs(DIMS, 4), **change)  # type: ignore[arg-type]
    specs = problem.input_specs(DIMS, 4), problem.output_specs(DIMS, 4)
    found = list(implausible(costs, *specs, 4, "here"))
    assert any(words in sentence for sentence in found), found
    assert all("here" in sentence for sentence in found)
