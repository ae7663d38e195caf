"""Helpers that run kernels of the tests in the simulator."""

from collections.abc import Mapping
from pathlib import Path

import torch

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import Compiler
from pk_runtime.sheet import Sheet
from pk_runtime.simulator import FunctionalRun, Simulator, TensorSpec

BF16 = torch.bfloat16


def kernel(source: str, **knobs: int) -> Candidate:
    return Candidate("pk", {"kernel.cu": source}, knobs)


def body(text: str, *, name: str = "k") -> str:
    """A whole file around the members of one kernel."""
    head = "#include <pk/pk.h>\nusing namespace pk;\n"
    return f"{head}struct {name} {{\n{text}\n}};\nPK_KERNEL({name})\n"


def run(
    simulator: Simulator,
    program: Path,
    sheet: Sheet,
    launches: list[list[dict[str, torch.Tensor]]],
    outputs: Mapping[str, tuple[int, ...]],
    *,
    seed: int = 0,
    wall_s: float = 10.0,
    dtype: torch.dtype = BF16,
) -> FunctionalRun:
    specs = [TensorSpec(name, shape, dtype) for name, shape in outputs.items()]
    return simulator.functional(
        program, launches=launches, outputs=specs, sheet=sheet, schedule_seed=seed, wall_s=wall_s
    )


def summary(
    compiler: Compiler,
    simulator: Simulator,
    sheet: Sheet,
    source: str,
    *,
    world: int = 2,
    launches: int = 1,
    seed: int = 0,
    wall_s: float = 5.0,
) -> tuple[str, str]:
    """Outcome and summary of a kernel with x[64, 64] in and y[64, 64] out."""
    inputs = [
        [{"x": torch.ones(64, 64, dtype=BF16)} for _ in range(world)] for _ in range(launches)
    ]
    program = compiler.simulator(kernel(source))
    found = run(simulator, program, sheet, inputs, {"y": (64, 64)}, seed=seed, wall_s=wall_s)
    return found.outcome, found.diagnosis.get("summary", "")
