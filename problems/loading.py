"""Load a problem from a file of its own. The file is code: only load files you trust, or in a
sandbox."""

import importlib.util
import inspect
import sys
from pathlib import Path

from problems.contract import HIDDEN, Problem
from problems.errors import InvalidProblem, ProblemError, blamed
from problems.lint.validation import breaches
from problems.registry import catalogue, problem_classes

MODULE = "custom_problem"
MAX_FILE_BYTES = 1 << 20


def load_problem(path: Path) -> Problem:
    """The one problem that a file defines, checked against the contract.

    Raises:
        ProblemError: the file cannot be read or raises; file and line are set.
        InvalidProblem: it has no problem, several, an incomplete one or one out of contract.
    """
    kinds = problem_classes(_execute(path), MODULE)
    if len(kinds) != 1:
        found = ", ".join(kind.__name__ for kind in kinds) or "none"
        raise InvalidProblem(
            f"The file must define exactly one subclass of problems.contract.Problem; "
            f"found: {found}.",
            file=path.name,
        )
    kind = kinds[0]
    if missing := sorted(getattr(kind, "__abstractmethods__", ())):
        raise InvalidProblem(
            f"{kind.__name__} does not implement {', '.join(missing)}.",
            file=path.name,
            line=inspect.getsourcelines(kind)[1],
        )
    try:
        problem = kind()
        found_breaches = breaches(problem) or _clashes(problem)
    except (Exception, SystemExit) as error:
        raise blamed(error, str(path), f"{kind.__name__} failed") from error
    if found_breaches:
        listed = "\n".join(f"- {breach}" for breach in found_breaches)
        raise InvalidProblem(
            f"{kind.__name__} breaks the problem contract:\n{listed}",
            file=path.name,
            line=inspect.getsourcelines(kind)[1],
        )
    return problem


def _execute(path: Path) -> dict[str, object]:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ProblemError(f"The file cannot be read: {error.strerror}.", file=path.name) from error
    if size > MAX_FILE_BYTES:
        raise ProblemError(
            f"The file has {size} bytes; {MAX_FILE_BYTES} are allowed.", file=path.name
        )
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise ProblemError("The file must be Python and end in .py.", file=path.name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise blamed(error, str(path), "The file failed to load") from error
    return vars(module)


def _clashes(problem: Problem) -> list[str]:
    if problem.number is not None:
        return ["`number` must be None: numbers belong to the catalogue."]
    if problem.slug in [known.slug for known in catalogue()]:
        return [f"`slug` {problem.slug!r} is taken by the catalogue; choose another."]
    if taken := [shape.name for shape in problem.shapes if shape.name in HIDDEN]:
        return [f"The shape name {taken[0]!r} is taken by the judge's own; choose another."]
    return []
