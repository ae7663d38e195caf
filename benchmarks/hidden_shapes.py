"""Runs every shipped kernel at hidden shapes of many seeds: each must be right at all of them.

    python3 -m benchmarks.hidden_shapes [--seeds 30] [--problem SLUG]

The shapes are those at which a full verdict with such a seed is reached, and so is the check: 2 and
4 ranks, three launches back to back, every output compared with the golden. What fails is a bug of
a kernel, or a promise that the check shapes of its problem do not make. Exit code 1 if any does.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

from pk_runtime.compiler import Compiler
from pk_runtime.execution import LocalExecutor
from pk_runtime.kernels import shipped, shipped_problems
from pk_runtime.sheet import load_sheet
from pk_runtime.simulator import Simulator
from problems.contract import HIDDEN
from problems.hosting import InProcessHost
from problems.registry import get
from sandbox.stages import StageFailed
from sandbox.stages.check import Check
from sandbox.stages.plan import plan

CACHE = Path(".pkforge") / "test-cache"
WORLD = 4


def _examine(
    slug: str, number: int, seeds: int, compiler: Compiler, simulator: Simulator
) -> tuple[int, list[str]]:
    """How many runs a kernel of a problem made, and what failed."""
    program, sheet = compiler.simulator(shipped(slug)[number]), load_sheet("h200x4")
    runs, failures = 0, []
    for seed in range(seeds):
        host = InProcessHost(get(slug)).with_hidden(seed, WORLD)
        check = Check(program, simulator, host, sheet, seed, lambda stage, detail: None)
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
    total, failed, begun = 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        compiler, simulator = Compiler(CACHE), Simulator(LocalExecutor(), Path(folder))
        for slug in [options.problem] if options.problem else shipped_problems():
            for number in range(len(shipped(slug))):
                runs, texts = _examine(slug, number, options.seeds, compiler, simulator)
                total, failed = total + runs, failed + len(texts)
                print(f"{slug} {number}: {runs} runs", *texts, sep="\n  ", flush=True)
    seconds = time.monotonic() - begun
    print(f"{total} runs at {2 * options.seeds} shapes, {failed} failures, {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
