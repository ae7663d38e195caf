"""The build stage: the candidate's source to a program, compiled inside the sandbox."""

import secrets
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import BuildError, Compiler
from pk_runtime.kernels import shipped_kernel
from pk_runtime.toolchain import ToolchainError
from sandbox.stages import StageFailed

_SHOWN = 20
_CONTROL = "alltoall"


def build(compiler: Compiler, candidate: Candidate, *, gpu: bool = False) -> Path:
    """The simulator's program, or with `gpu` the library for GPUs.

    StageFailed with the compiler's messages, by line, if it does not compile. Raises ToolchainError
    only if a kernel that is known to be good does not compile either.
    """
    make = compiler.library if gpu else compiler.simulator
    try:
        return make(candidate)
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


def _must_build_another(make: Callable[[Candidate], Path]) -> None:
    """Compiles a good kernel that no cache has, to tell a broken machine from a bad candidate."""
    control = shipped_kernel(_CONTROL)
    fresh = f"// {secrets.token_hex(8)}\n{control.source}"
    make(Candidate(control.language, {control.main_file: fresh}))
