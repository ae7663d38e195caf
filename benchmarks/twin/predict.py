"""Predicted times of measured points; every (kernel, knobs) is built once."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_gemm.__main__ import gemm
from benchmarks.twin.measured import Measured, MeasuredPoint
from pk_runtime.candidate import Candidate
from pk_runtime.compiler import Compiler
from pk_runtime.execution import LocalExecutor
from pk_runtime.kernels import shipped_kernel
from pk_runtime.sheet import Sheet
from pk_runtime.simulator import Simulator, TensorSpec
from problems.contract import OutputSpec
from problems.registry import get

GEMM_ALONE = "gemm_allgather"  # with one rank it is the GEMM
WALL_S = 120.0
ROTATE_FROM_BYTES = 4 << 20  # of inputs: the measurement keeps what is smaller in L2


@dataclass(frozen=True)
class Prediction:
    """A measured point beside what the simulator says, microseconds."""

    point: MeasuredPoint
    us: float
    bottleneck: str

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.us / self.point.us - 1


@dataclass(frozen=True)
class Comparison:
    """A machine's measured points beside their predictions by a sheet."""

    measured: Measured
    predictions: Sequence[Prediction]
    sheet: str

    def set_of(self, prediction: Prediction) -> str:
        """ "fit", or "validation": of a point that nothing was fitted to."""
        return "fit" if prediction.point.group in self.measured.fit_groups else "validation"

    @property
    def sets(self) -> list[tuple[str, list[Prediction]]]:
        """Machine and set, e.g. "4x H200 validation", with its predictions; empty ones left out."""
        return [
            (f"{self.measured.machine} {kind}", found)
            for kind in ("validation", "fit")
            if (found := [p for p in self.predictions if self.set_of(p) == kind])
        ]


class PredictionError(RuntimeError):
    """A point that the simulator could not time: which, and what it said."""


def candidate_of(point: MeasuredPoint) -> Candidate:
    """The kernel of a point with its knobs."""
    if point.kernel == "gemm":
        return gemm(point.knobs)
    return Candidate("pk", shipped_kernel(point.kernel).files, point.knobs)


def predict(
    points: Sequence[MeasuredPoint],
    sheet: Sheet,
    folder: Path,
    jobs: int,
    on_point: Callable[[Prediction], None] = lambda _: None,
) -> list[Prediction]:
    """A prediction for every point, in their order; builds are cached in `folder`.

    PredictionError if a point cannot be simulated, BuildError if a kernel does not compile.
    """
    compiler = Compiler(folder / "cache")
    compiler.engine()
    simulator = Simulator(LocalExecutor(), folder / "runs")

    def one(point: MeasuredPoint) -> Prediction:
        program = compiler.simulator(candidate_of(point))
        prediction = _timed(point, program, simulator, sheet)
        on_point(prediction)
        return prediction

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, points))


def _timed(point: MeasuredPoint, program: Path, simulator: Simulator, sheet: Sheet) -> Prediction:
    problem = get(GEMM_ALONE if point.kernel == "gemm" else point.problem)
    inputs = _specs(problem.input_specs(point.dims, point.world_size))
    run = simulator.timing(
        program,
        inputs=inputs,
        outputs=_specs(problem.output_specs(point.dims, point.world_size)),
        world_size=point.world_size,
        sheet=sheet,
        warm=sum(math.prod(s.shape) * s.dtype.itemsize for s in inputs) < ROTATE_FROM_BYTES,
        wall_s=WALL_S,
    )
    if run.outcome != "finished" or run.bottleneck is None:
        why = run.diagnosis.get("summary", run.outcome)
        raise PredictionError(f"{point.group} {point.knobs}: {why}")
    return Prediction(point, run.time_us, run.bottleneck.name)


def _specs(found: dict[str, OutputSpec]) -> list[TensorSpec]:
    return [TensorSpec(name, spec.shape, spec.dtype) for name, spec in found.items()]
