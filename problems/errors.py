"""What can be wrong with a problem: exceptions that say what, where and what to do next."""

import traceback
from collections.abc import Sequence
from pathlib import Path


class ProblemError(Exception):
    """Base of every error of this package.

    `file` and `line` point into the problem's own file where that is known.
    """

    def __init__(self, message: str, *, file: str | None = None, line: int | None = None) -> None:
        where = "" if file is None else f"{file}:{line}: " if line is not None else f"{file}: "
        super().__init__(f"{where}{message}")
        self.message = message
        self.file = file
        self.line = line


class UnknownProblem(ProblemError):  # noqa: N818
    """No problem of the catalogue has that slug or number."""

    def __init__(self, asked: str, near: Sequence[str], known: Sequence[str]) -> None:
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(known)}."
        super().__init__(f"There is no problem {asked!r}. {hint}")
        self.asked = asked
        self.near = tuple(near)


class UnknownShape(ProblemError):  # noqa: N818
    """The problem has no shape of that name."""

    def __init__(self, slug: str, asked: str, known: Sequence[str]) -> None:
        super().__init__(
            f"Problem {slug!r} has no shape {asked!r}. Its shapes: {', '.join(known)}."
        )
        self.asked = asked


class InvalidProblem(ProblemError):  # noqa: N818
    """A problem file or class that breaks the contract; the message lists every breach found."""


class WireError(ProblemError):
    """A file handed over by a problem's process is missing, malformed or too large."""


def line_in(error: BaseException, file: str) -> int | None:
    """The line of `file` in which an error was raised, or from which what raised it was called."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return frames[-1].lineno if frames else None


def blamed(error: BaseException, file: str, doing: str) -> ProblemError:
    """An error of a problem's own code as a ProblemError with its file name and line."""
    if isinstance(error, ProblemError):
        return error
    what = error.msg if isinstance(error, SyntaxError) else str(error)
    text = (
        f"{doing}: {type(error).__name__}: {what}" if what else f"{doing}: {type(error).__name__}"
    )
    return ProblemError(text, file=Path(file).name, line=line_in(error, file))
