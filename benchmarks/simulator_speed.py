"""How long the simulator itself takes: build, functional check, full-size timing, on one core.

    taskset -c 0 python3 -m benchmarks.simulator_speed

Each figure is the median of 5 runs, wall seconds, engine already built. Timing runs are also
measured for their peak memory, and at growing sizes for what a step (one K step of one output
tile on one rank) costs.
"""

import multiprocessing
import resource
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
SIZES = (2048, 4096, 8192, 16384)
FULL = 8192
TILE_M, TILE_N, STEP_K = 128, 256, 64  # of the kernel's default knobs


def _median_s(action: Callable[[int], object]) -> float:
    times = []
    for number in range(REPEATS):
        start = time.perf_counter()
        action(number)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _dims(size: int) -> dict[str, int]:
    return {"M": size, "N": size, "K": size}


def _steps(size: int) -> int:
    """K steps of all output tiles on all ranks."""
    return size // TILE_M * (size // TILE_N) * (size // WORLD // STEP_K) * WORLD


def _predict(program: Path, folder: Path, size: int) -> None:
    problem, sheet = get("gemm_reducescatter"), load_sheet("h200x4")
    inputs = problem.input_specs(_dims(size), WORLD)
    outputs = problem.output_specs(_dims(size), WORLD)
    run = Simulator(LocalExecutor(), folder).timing(
        program,
        inputs=[TensorSpec(n, s.shape, s.dtype) for n, s in inputs.items()],
        outputs=[TensorSpec(n, s.shape, s.dtype) for n, s in outputs.items()],
        world_size=WORLD,
        sheet=sheet,
    )
    if run.outcome != "finished":
        raise RuntimeError(f"{size}: {run.diagnosis.get('summary', run.outcome)}")


def _timed_apart(program: Path, folder: Path, size: int) -> tuple[float, float]:
    """Median seconds and the peak memory in MiB of timing runs: the only children of a process."""
    seconds = _median_s(lambda _: _predict(program, folder, size))
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


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
    small = problem.output_specs(tiny, WORLD)

    def check(number: int) -> None:
        simulator.functional(
            program,
            launches=launches,
            outputs=[TensorSpec(n, s.shape, s.dtype) for n, s in small.items()],
            sheet=sheet,
            schedule_seed=number,
        )

    built, checked = _median_s(build), _median_s(check)
    print(f"build                                              {built:.3f} s")
    print(f"functional run, tiny, 4 ranks, 3 launches          {checked:.3f} s")
    print(f"build + functional run                             {built + checked:.3f} s")
    spawn = multiprocessing.get_context("spawn")
    for size in SIZES:
        with spawn.Pool(1) as pool:  # a process that has had no other children
            seconds, peak = pool.apply(_timed_apart, (program, folder / "runs", size))
        print(
            f"timing, {size} x {size} x {size}, 4 ranks: {seconds:.3f} s, {peak:.0f} MiB, "
            f"{1e6 * seconds / _steps(size):.2f} us a step ({_steps(size)} steps)"
        )
        if size == FULL:
            print(f"build + timing                                     {built + seconds:.3f} s")


if __name__ == "__main__":
    main()
