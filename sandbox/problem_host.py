"""Where a problem's code runs: the catalogue's in this process, a user's file in a sandbox."""

import hashlib
import inspect
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pk_runtime
import problems
from pk_runtime.execution import Command, Completed, Executor, Limits
from problems import wire
from problems.contract import Problem, Tensors
from problems.description import Description
from problems.errors import ProblemError, WireError
from problems.hidden import within_the_stated
from problems.hosting import InProcessHost, Materialized, ProblemHost
from problems.lint.report import LintReport
from sandbox.isolation.interpreter import interpreter_paths

_FILE = "problem.py"
_MEMORY_BYTES = 8 << 30
WALL_S: Mapping[str, float] = {"describe": 60, "materialize": 180, "defective": 300, "lint": 600}
_PACKAGES = tuple(Path(inspect.getfile(package)).parent for package in (pk_runtime, problems))
_ENV = {
    "PYTHONPATH": str(_PACKAGES[0].parent),
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONWARNINGS": "ignore",
    "OMP_NUM_THREADS": "2",
}
_SHOWN = 600

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class CustomProblem:
    """A user's problem file: untrusted Python code with one subclass of `Problem`."""

    text: str

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the file."""
        return hashlib.sha256(self.text.encode(errors="surrogatepass")).hexdigest()


ProblemSource = Problem | CustomProblem


def open_host(source: ProblemSource, executor: Executor, workspace: Path) -> ProblemHost:
    """The host of a problem: in-process for the catalogue, in `executor`'s sandbox for a file."""
    if isinstance(source, CustomProblem):
        return SandboxedHost(source, executor, workspace)
    return InProcessHost(source)


def digest_of(source: ProblemSource) -> str:
    """SHA-256 (hex) of the code that defines a problem."""
    if isinstance(source, CustomProblem):
        return source.digest
    return hashlib.sha256(Path(inspect.getfile(type(source))).read_bytes()).hexdigest()


class SandboxedHost:
    """A `ProblemHost` that runs a custom problem with `python -m problems.host` in a sandbox.

    Each answer is one process in a fresh folder; nothing of it is kept but what `problems.wire`
    reads back. Methods raise ProblemError with a message for the problem's author.
    """

    def __init__(
        self,
        problem: CustomProblem,
        executor: Executor,
        workspace: Path,
        hidden: tuple[int, int] | None = None,
    ) -> None:
        self._problem = problem
        self._hidden = () if hidden is None else ("--hidden", *map(str, hidden))
        self._executor = executor
        self._workspace = workspace
        self._descriptions: dict[int, Description] = {}

    def describe(self, world_size: int = 4) -> Description:
        """The problem without its code, at a world size."""
        if world_size not in self._descriptions:
            found = self._ask(
                lambda folder: wire.read_description(folder, world_size),
                "describe", "--world", str(world_size),
            )  # fmt: skip
            if not within_the_stated(found):
                raise WireError("Its hidden shapes are not of sizes between its check shapes'.")
            self._descriptions[world_size] = found
        return self._descriptions[world_size]

    def materialize(self, shape: str, world_size: int, seed: int) -> Materialized:
        """Inputs of a seed, and what must come out."""
        description = self.describe(world_size)
        return self._ask(
            lambda folder: wire.read_materialized(folder, description, shape),
            "materialize", *_case(shape, world_size, seed),
        )  # fmt: skip

    def defective(self, shape: str, world_size: int, seed: int) -> dict[str, list[Tensors]]:
        """Outputs of the reference under communication defects, for the wrong-answer bank."""
        description = self.describe(world_size)
        return self._ask(
            lambda folder: wire.read_defective(folder, description, shape),
            "defective", *_case(shape, world_size, seed),
        )  # fmt: skip

    def lint(self) -> LintReport:
        """Whether the problem can be admitted."""
        return self._ask(wire.read_lint, "lint")

    def with_hidden(self, seed: int, world_size: int) -> "SandboxedHost":
        """A host that also knows the hidden check shapes of a seed, by name."""
        hidden = (seed, world_size)
        return SandboxedHost(self._problem, self._executor, self._workspace, hidden)

    def _ask(self, read: Callable[[Path], Answer], command: str, *arguments: str) -> Answer:
        with self._folder() as folder:
            (folder / _FILE).write_text(self._problem.text, encoding="utf-8", errors="replace")
            done = self._executor.run(
                Command(
                    argv=(sys.executable, "-m", "problems.host", *self._hidden, _FILE, command,
                          *arguments),
                    workdir=folder,
                    read_only=(*interpreter_paths(), *_PACKAGES),
                    env=_ENV,
                    limits=Limits(WALL_S[command], _MEMORY_BYTES, processes=128,
                                  file_bytes=wire.MAX_TENSOR_BYTES),
                )
            )  # fmt: skip
            _must_have_answered(done, folder, command)
            return read(folder)

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        self._workspace.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="problem-", dir=self._workspace) as folder:
            yield Path(folder)


def _must_have_answered(done: Completed, folder: Path, command: str) -> None:
    if done.exceeded == "wall":
        raise ProblemError(
            f"{command!r} took more than {WALL_S[command]:g} s and was stopped. Look for an "
            "endless loop, or use smaller check shapes.", file=_FILE,
        )  # fmt: skip
    if done.exceeded is not None:
        limit = f" ({_MEMORY_BYTES >> 30} GiB)" if done.exceeded == "memory" else ""
        raise ProblemError(
            f"{command!r} was stopped for exceeding its {done.exceeded} limit{limit}.", file=_FILE
        )
    if done.exit_code not in (0, 1) or not (folder / wire.RESULT).is_file():
        ended = f"signal {done.signal}" if done.signal else f"exit code {done.exit_code}"
        tail = done.stderr.decode(errors="replace")[-_SHOWN:]
        said = "".join(c if c.isprintable() or c == "\n" else "?" for c in tail).strip()
        raise ProblemError(f"{command!r} ended with {ended} and no answer. {said}", file=_FILE)


def _case(shape: str, world_size: int, seed: int) -> tuple[str, ...]:
    return ("--shape", shape, "--world", str(world_size), "--seed", str(seed))
