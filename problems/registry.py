"""The catalogue: the problems that ship with the project, by slug or number."""

import difflib
import functools
import importlib
import inspect
import pkgutil

import problems.catalogue
from problems.contract import Problem
from problems.errors import UnknownProblem


@functools.cache
def catalogue() -> tuple[Problem, ...]:
    """Every problem of the catalogue, by number."""
    found = []
    for module in pkgutil.iter_modules(problems.catalogue.__path__):
        name = f"{problems.catalogue.__name__}.{module.name}"
        found += problem_classes(vars(importlib.import_module(name)), name)
    return tuple(sorted((kind() for kind in found), key=lambda problem: problem.number or 0))


def get(slug_or_number: str | int) -> Problem:
    """The problem of that slug ("gemm_reducescatter") or number (16 or "16").

    Raises UnknownProblem, which names near matches.
    """
    asked = str(slug_or_number).strip()
    for problem in catalogue():
        if asked in (problem.slug, str(problem.number)):
            return problem
    slugs = [problem.slug for problem in catalogue()]
    near = difflib.get_close_matches(asked.lower().replace("-", "_"), slugs, n=2)
    raise UnknownProblem(asked, near, [f"{p.slug} ({p.number})" for p in catalogue()])


def problem_classes(names: dict[str, object], module: str) -> list[type[Problem]]:
    """The subclasses of Problem that a module defines, without those it only derives others from.

    Abstract classes are included, so that a caller can say which methods are missing.
    """
    defined = {
        value
        for value in names.values()
        if inspect.isclass(value) and issubclass(value, Problem) and value.__module__ == module
    }
    bases = {base for kind in defined for base in kind.__mro__[1:]}
    return sorted(defined - bases, key=lambda kind: kind.__qualname__)
