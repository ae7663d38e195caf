"""What a verdict depends on, by name and version."""

import dataclasses
import hashlib
import importlib.metadata
import json
import platform

import torch

from pk_runtime.compiler import Compiler
from pk_runtime.target import Target
from pk_runtime.toolchain import gxx
from sandbox.problem_host import ProblemSource, digest_of

# Raised whenever a candidate could get another verdict than before.
JUDGE_VERSION = "5"

_DIGEST = 16


def deciding(problem: ProblemSource | None, target: Target) -> dict[str, str]:
    """The versions that a verdict stands and falls with: judge, problem and hardware sheet.

    Without the problem's if that cannot have changed. See `sandbox.replay.void_because`; for
    measured times the GPUs are another (`sandbox.gpu`).
    """
    sheet = json.dumps(dataclasses.asdict(target.sheet), sort_keys=True).encode()
    versions = {
        "judge": JUDGE_VERSION,
        "sheet": f"{target.sheet.name}@{hashlib.sha256(sheet).hexdigest()[:_DIGEST]}",
    }
    return versions if problem is None else {**versions, "problem": digest_of(problem)[:_DIGEST]}


def of_this_machine(compiler: Compiler) -> dict[str, str]:
    """The versions of everything else that a judgement on the CPU uses."""
    versions = {
        "pkforge": _own(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    try:
        versions["compiler"] = gxx().version
        versions["simulator"] = compiler.engine().parent.name[:_DIGEST]
    except Exception as error:  # noqa: BLE001 - a verdict is still worth having without them
        versions["compiler"] = f"unavailable: {type(error).__name__}"
    return versions


def _own() -> str:
    try:
        return importlib.metadata.version("pkforge")
    except importlib.metadata.PackageNotFoundError:
        return "source"
