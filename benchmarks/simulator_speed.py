"""How long the simulator itself takes: build, functional check, full-size timing, on one core.

    taskset -c 0 python3 -m benchmarks.simulator_speed

Each figure is the median of 5 runs in this process, wall seconds, engine already built.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import Compiler
from pk_runtime.execution import LocalExecutor
from pk_runtime.kernels import shipped
from pk_runtime.sheet import load_sheet
from pk_runtime.simulator import Simulator, TensorSpec
from problems.registry import get

WORLD, REPEATS = 4, 5
FULL = {"M": 8192, "N": 8192, "K": 8192}


def _median_s(action: Callable[[int], object]) -> float:
    times = []
    for number in range(REPEATS):
        start = time.perf_counter()
        action(number)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Prints the figures for GEMM + reduce-scatter on four ranks."""
    folder = Path(tempfile.mkdtemp())
    compiler = Compiler(folder / "cache")
    compiler.engine()
    simulator = Simulator(LocalExecutor(), folder / "runs")
    sheet, problem = load_sheet("h200x4"), get("gemm_reducescatter")
    source = shipped("gemm_reducescatter")[0].source

    def build(number: int) -> Path:
        return compiler.simulator(Candidate("pk", {"kernel.cu": f"{source}// {number}\n"}, {}))

    program = build(-1)
    tiny = dict(next(s for s in problem.shapes if s.name == "tiny").dims)
    launches = [[problem.make_inputs(r, WORLD, i, tiny) for r in range(WORLD)] for i in range(3)]
    small, full = problem.output_specs(tiny, WORLD), problem.output_specs(FULL, WORLD)
    inputs = problem.input_specs(FULL, WORLD)

    def check(number: int) -> None:
        simulator.functional(
            program,
            launches=launches,
            outputs=[TensorSpec(n, s.shape, s.dtype) for n, s in small.items()],
            sheet=sheet,
            schedule_seed=number,
        )

    def predict(_: int) -> None:
        simulator.timing(
            program,
            inputs=[TensorSpec(n, s.shape, s.dtype) for n, s in inputs.items()],
            outputs=[TensorSpec(n, s.shape, s.dtype) for n, s in full.items()],
            world_size=WORLD,
            sheet=sheet,
        )

    built, checked, predicted = _median_s(build), _median_s(check), _median_s(predict)
    print(f"build                                              {built:.3f} s")
    print(f"functional run, tiny, 4 ranks, 3 launches          {checked:.3f} s")
    print(f"build + functional run                             {built + checked:.3f} s")
    print(f"timing, 8192 x 8192 x 8192, 4 ranks                {predicted:.3f} s")
    print(f"build + timing                                     {built + predicted:.3f} s")


if __name__ == "__main__":
    main()
