"""Runs every shipped kernel under many schedules and counts what the simulator has against it.

    python3 -m benchmarks.false_alarms [--schedules 1000] [--problem SLUG]

The schedules of a kernel are dealt over the problem's smallest and its ragged shape, 2 and 4 ranks,
three launches back to back each. Shipped kernels are correct: whatever is reported is a false alarm
of the simulator, or a bug of ours. Exit code 1 if there is any.
"""

import argparse
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks.every_kernel import Built, examine_all
from pk_runtime.kernels import shipped_problems
from pk_runtime.sheet import load_sheet
from pk_runtime.simulator import TensorSpec
from problems.contract import Problem
from problems.registry import get

SHAPES, WORLDS, LAUNCHES = ("tiny", "odd"), (2, 4), 3
WALL_S = 600.0


def _cases(problem: Problem) -> Iterator[tuple[dict[str, int], int, str]]:
    for shape in problem.shapes:
        for world in WORLDS:
            if shape.name in SHAPES and problem.divides(shape.dims, world):
                yield dict(shape.dims), world, f"{shape.name}, {world} ranks"


def _examine(built: Built, *, schedules: int) -> tuple[int, list[str]]:
    """How many schedules of a kernel ran, and what was reported."""
    problem, sheet = get(built.slug), load_sheet("h200x4")
    cases = list(_cases(problem))
    done, alarms = 0, []
    for case, (dims, world, where) in enumerate(cases):
        specs = problem.output_specs(dims, world)
        found = built.simulator.explore(
            built.program,
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
            alarms.append(f"{where}: {found.outcome}: {found.diagnosis}")
    return done, alarms


def main() -> int:
    """Prints one line per kernel and the total."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000, help="of each kernel")
    parser.add_argument("--problem", choices=shipped_problems(), help="only its kernels")
    options = parser.parse_args()
    work = partial(_examine, schedules=options.schedules)
    total = examine_all(work, "schedules", options.problem)
    print(f"{total.done} schedules, {total.wrong} alarms, {total.seconds:.0f} s")
    return 1 if total.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
