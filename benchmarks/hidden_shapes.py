"""Runs every shipped kernel at hidden shapes of many seeds: each must be right at all of them.

    python3 -m benchmarks.hidden_shapes [--seeds 30] [--problem SLUG]

The shapes are those at which a full verdict with such a seed is reached, and so is the check: 2 and
4 ranks, three launches back to back, every output compared with the golden. What fails is a bug of
a kernel, or a promise that the check shapes of its problem do not make. Exit code 1 if any does.
"""

import argparse
import sys
from functools import partial

import torch

from benchmarks.every_kernel import Built, examine_all
from pk_runtime.kernels import shipped_problems
from pk_runtime.sheet import load_sheet
from problems.contract import HIDDEN
from problems.hosting import InProcessHost
from problems.registry import get
from sandbox.stages import StageFailed
from sandbox.stages.check import Check
from sandbox.stages.plan import plan

WORLD = 4


def _examine(built: Built, *, seeds: int) -> tuple[int, list[str]]:
    """How many runs a kernel made, and what failed."""
    sheet = load_sheet("h200x4")
    runs, failures = 0, []
    for seed in range(seeds):
        host = InProcessHost(get(built.slug)).with_hidden(seed, WORLD)
        check = Check(built.program, built.simulator, host, sheet, seed, lambda *_: None)
        try:
            done = check.run(plan("full", HIDDEN, WORLD))["checks"]
        except StageFailed as failed:
            dims = failed.evidence.get("dims")
            failures.append(f"seed {seed}, {dims}: {failed.status}: {failed.evidence['summary']}")
        else:
            runs += sum(len(entry["schedules"]) for entry in done)
    return runs, failures


def main() -> int:
    """Prints one line per kernel, whatever fails there, and the total."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=30, help="of each kernel")
    parser.add_argument("--problem", choices=shipped_problems(), help="only its kernels")
    options = parser.parse_args()
    torch.set_num_threads(1)
    total = examine_all(partial(_examine, seeds=options.seeds), "runs", options.problem)
    shapes = 2 * options.seeds
    print(f"{total.done} runs at {shapes} shapes, {total.wrong} failures, {total.seconds:.0f} s")
    return 1 if total.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
