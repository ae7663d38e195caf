"""The build stage: the candidate's source to a simulator program, compiled inside the sandbox."""

from dataclasses import asdict
from pathlib import Path

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import BuildError, Compiler
from sandbox.stages import StageFailed

_SHOWN = 20


def build(compiler: Compiler, candidate: Candidate) -> Path:
    """The program; StageFailed with the compiler's messages, by line, if it does not compile."""
    try:
        return compiler.simulator(candidate)
    except BuildError as error:
        errors = [d for d in error.diagnostics if d.severity == "error"] or error.diagnostics
        first = str(errors[0]) if errors else "the compiler gave no reason"
        more = f" ({len(errors) - 1} more errors)" if len(errors) > 1 else ""
        evidence = {
            "summary": f"It does not compile: {first}{more}",
            "diagnostics": [asdict(record) for record in error.diagnostics[:_SHOWN]],
        }
        raise StageFailed("build", "build_failed", evidence) from error
