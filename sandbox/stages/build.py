"""The build stage: the candidate's source to a program, compiled inside the sandbox.

What was compiled is looked at before it runs: see `sandbox.rules.objects`.
"""

import secrets
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import OBJECT, BuildError, Compiler
from pk_runtime.kernels import shipped_kernel
from pk_runtime.toolchain import ToolchainError
from sandbox.rules.objects import refusals
from sandbox.rules.scan import Violation
from sandbox.stages import StageFailed

_SHOWN = 20
_NAME = 120
_CONTROL = "alltoall"


def build(compiler: Compiler, candidate: Candidate, *, gpu: bool = False) -> Path:
    """The simulator's program, or with `gpu` the library for GPUs.

    StageFailed with the compiler's messages, by line, if it does not compile, and with the names
    in question if its object refers to or defines what a kernel may not. Raises ToolchainError only
    if a kernel that is known to be good does not compile either.
    """
    make = compiler.library if gpu else compiler.simulator
    try:
        built = make(candidate)
    except ToolchainError as error:
        _must_build_another(make)
        blame = {"summary": f"It does not compile, and other kernels do: {error}"}
        raise StageFailed("build", "build_failed", blame) from error
    except BuildError as error:
        errors = [d for d in error.diagnostics if d.severity == "error"] or error.diagnostics
        first = str(errors[0]) if errors else "the compiler gave no reason"
        more = f" ({len(errors) - 1} more errors)" if len(errors) > 1 else ""
        evidence = {
            "summary": f"It does not compile: {first}{more}",
            "diagnostics": [asdict(record) for record in error.diagnostics[:_SHOWN]],
        }
        raise StageFailed("build", "build_failed", evidence) from error
    _accept(built.with_name(OBJECT), candidate, gpu)
    return built


def _accept(built: Path, candidate: Candidate, gpu: bool) -> None:
    """StageFailed with each name that the object must not have."""
    guide = "raw_cuda" if candidate.language == "cuda" else "pk_guide"
    violations = [
        Violation(
            candidate.main_file, _line(candidate, name), name[:_NAME],
            why, f"Write only what docs/{guide}.md describes",
        )
        for name, why in refusals(built, gpu=gpu)
    ]  # fmt: skip
    if violations:
        first = violations[0]
        more = f" ({len(violations) - 1} more)" if len(violations) > 1 else ""
        summary = (
            f"The compiled kernel has what a kernel may not: {first.token!r}: {first.why}.{more}"
        )
        shown = [violation.to_json() for violation in violations[:_SHOWN]]
        raise StageFailed("build", "rejected", {"summary": summary, "violations": shown})


def _line(candidate: Candidate, name: str) -> int:
    """The first line that has the name, which a compiler makes of others mostly; else 0."""
    lines = candidate.source.splitlines()
    return next((number for number, text in enumerate(lines, 1) if name in text), 0)


def _must_build_another(make: Callable[[Candidate], Path]) -> None:
    """Compiles a good kernel that no cache has, to tell a broken machine from a bad candidate."""
    control = shipped_kernel(_CONTROL)
    fresh = f"// {secrets.token_hex(8)}\n{control.source}"
    make(Candidate(control.language, {control.main_file: fresh}))
