"""Compute a problem's golden and check its form, so that a mistake in it is named as one."""

import inspect
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from problems.contract import Problem, Tensors
from problems.errors import InvalidProblem, blamed


def golden_of(problem: Problem, inputs: Sequence[Tensors]) -> list[Tensors]:
    """The golden of every rank.

    Raises:
        ProblemError: `golden` raised; file and line are those of the problem.
        InvalidProblem: it returned something else than one dict of fp64 tensors per rank.
    """
    file = inspect.getfile(type(problem))
    try:
        golden: object = problem.golden(inputs)
    except Exception as error:
        raise blamed(error, file, f"The golden of {problem.slug!r} failed") from error
    wrong = _misfit(problem, golden, len(inputs))
    if wrong is not None or not isinstance(golden, list):
        raise InvalidProblem(f"The golden of {problem.slug!r} {wrong}", file=Path(file).name)
    return golden


def _misfit(problem: Problem, golden: object, world_size: int) -> str | None:
    names = set(problem.output_names)
    if not isinstance(golden, list) or len(golden) != world_size:
        return f"must be a list with one entry for each of {world_size} ranks."
    for rank in golden:
        if not isinstance(rank, dict) or set(rank) != names:
            return f"must give {', '.join(problem.output_names)} for every rank, by name."
        for name, tensor in rank.items():
            if not isinstance(tensor, Tensor):
                return f"must be tensors; {name!r} is {type(tensor).__name__}."
            wide = (torch.float64, torch.complex128)
            if problem.tolerance != "T0" and tensor.dtype not in wide:
                return f"must be computed in fp64; {name!r} is {tensor.dtype}. Use .double()."
    return None
