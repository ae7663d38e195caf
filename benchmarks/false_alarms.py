"""Runs every shipped kernel under many schedules and counts what the simulator has against it.

    python3 -m benchmarks.false_alarms [--schedules 1000] [--problem SLUG]

The schedules of a kernel are dealt over the problem's smallest and its ragged shape, 2 and 4 ranks,
three launches back to back each. Shipped kernels are correct: whatever is reported is a false alarm
of the simulator, or a bug of ours. Exit code 1 if there is any.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pk_runtime.compiler import Compiler
from pk_runtime.execution import LocalExecutor
from pk_runtime.kernels import shipped, shipped_problems
from pk_runtime.sheet import load_sheet
from pk_runtime.simulator import Simulator, TensorSpec
from problems.contract import Problem
from problems.registry import get

CACHE = Path(".pkforge") / "test-cache"
SHAPES, WORLDS, LAUNCHES = ("tiny", "odd"), (2, 4), 3
WALL_S = 600.0


def _cases(problem: Problem) -> Iterator[tuple[dict[str, int], int, str]]:
    for shape in problem.shapes:
        for world in WORLDS:
            if shape.name in SHAPES and problem.divides(shape.dims, world):
                yield dict(shape.dims), world, f"{shape.name}, {world} ranks"


def _examine(
    slug: str, number: int, schedules: int, compiler: Compiler, simulator: Simulator
) -> tuple[int, list[str]]:
    """How many schedules of a kernel ran, and what was reported."""
    problem, sheet = get(slug), load_sheet("h200x4")
    program = compiler.simulator(shipped(slug)[number])
    cases = list(_cases(problem))
    done, alarms = 0, []
    for case, (dims, world, where) in enumerate(cases):
        specs = problem.output_specs(dims, world)
        found = simulator.explore(
            program,
            launches=[
                [problem.make_inputs(rank, world, launch, dims) for rank in range(world)]
                for launch in range(LAUNCHES)
            ],
            outputs=[TensorSpec(name, s.shape, s.dtype) for name, s in specs.items()],
            sheet=sheet,
            schedules=-(-schedules // len(cases)),
            seed=case,
            wall_s=WALL_S,
        )
        done += found.schedules_run
        if found.outcome != "finished":
            alarms.append(f"{slug} {number}, {where}: {found.outcome}: {found.diagnosis}")
    return done, alarms


def main() -> int:
    """Prints one line per kernel and the total."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000, help="of each kernel")
    parser.add_argument("--problem", choices=shipped_problems(), help="only its kernels")
    options = parser.parse_args()
    total, alarms, begun = 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        compiler, simulator = Compiler(CACHE), Simulator(LocalExecutor(), Path(folder))
        for slug in [options.problem] if options.problem else shipped_problems():
            for number in range(len(shipped(slug))):
                done, texts = _examine(slug, number, options.schedules, compiler, simulator)
                total, alarms = total + done, alarms + len(texts)
                print(f"{slug} {number}: {done} schedules", *texts, sep="\n  ", flush=True)
    seconds = time.monotonic() - begun
    print(f"{total} schedules, {alarms} alarms, {seconds:.0f} s")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
