"""Breaks the shipped kernels in one place at a time and counts what the simulator catches.

    python3 -m benchmarks.mutation [--kernel NAME] [--jobs 2] [--json OUT] [--markdown OUT]

Each mutant is built and run on 4 and on 2 ranks, at the problem's smallest and at its ragged shape,
three launches back to back, under the schedules with numbers 0 to 5, until something is wrong: a
deadlock, a race, a fault, a wrong result, no end. The kernels themselves are run the same way first
and must be right. A mutant that nothing tells from the kernel is missed; some of those are
equivalent.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.mutation.operators import Mutant, mutants
from pk_runtime.candidate import Candidate
from pk_runtime.compiler import BuildError, Compiler
from pk_runtime.execution import LocalExecutor
from pk_runtime.kernels import shipped as shipped_kernels
from pk_runtime.kernels import shipped_kernel, shipped_names, shipped_problems
from pk_runtime.sheet import load_sheet
from pk_runtime.simulator import Simulator, TensorSpec
from problems.contract import Problem
from problems.registry import get

CACHE = Path(".pkforge") / "mutants"
SCHEDULES = range(6)
LAUNCHES = 3
WALL_S = 5.0
MISSED, UNBUILT = "missed", "does not build"
# What the simulator's outcomes are called where a person reads them.
_CALLED = {"fault": "fault", "dirty": "signals left over", "timeout": "no end"}


@dataclass(frozen=True)
class Result:
    """What became of a mutant; `said` is the report's summary, or why it did not build."""

    kernel: str
    operator: str
    line: int
    outcome: str
    said: str
    seconds: float


def _problem_of(kernel: str) -> Problem:
    source = shipped_kernel(kernel).source
    for slug in shipped_problems():
        if any(other.source == source for other in shipped_kernels(slug)):
            return get(slug)
    raise LookupError(kernel)


def _run(problem: Problem, program: Path, folder: Path) -> tuple[str, str]:
    """(outcome, summary) of the first run that is not right; (MISSED, "") if all are."""
    simulator, sheet = Simulator(LocalExecutor(), folder), load_sheet("h200x4")
    for world in (4, 2):
        for shape in problem.shapes:
            if shape.name not in ("tiny", "odd") or not problem.divides(shape.dims, world):
                continue
            launches = [
                [problem.make_inputs(rank, world, number, shape.dims) for rank in range(world)]
                for number in range(LAUNCHES)
            ]
            golden = [problem.golden(inputs) for inputs in launches]
            specs = problem.output_specs(shape.dims, world)
            outputs = [TensorSpec(name, spec.shape, spec.dtype) for name, spec in specs.items()]
            for schedule in SCHEDULES:
                found = simulator.functional(
                    program, launches=launches, outputs=outputs, sheet=sheet,
                    schedule_seed=schedule, compute_sms=1 if schedule % 2 else 5, wall_s=WALL_S,
                )  # fmt: skip
                if found.outcome != "finished":
                    said = str(found.diagnosis.get("summary", ""))
                    return _CALLED.get(found.outcome, found.outcome), said
                for got, want in zip(found.outputs, golden, strict=True):
                    for mine, gold in zip(got, want, strict=True):
                        if not all(_close(mine[name], value) for name, value in gold.items()):
                            kind = "wrong result" if schedule == 0 else "race"
                            return kind, f"{world} ranks, {shape.name}, schedule {schedule}"
    return MISSED, ""


def _close(got: torch.Tensor, gold: torch.Tensor) -> bool:
    return torch.allclose(got.double(), gold.double(), rtol=2**-7, atol=2**-6)


def examine(mutant: Mutant) -> Result:
    """Builds and runs one mutant."""
    torch.set_num_threads(1)
    started = time.monotonic()
    try:
        program = Compiler(CACHE).simulator(Candidate("pk", {"kernel.cu": mutant.source}))
    except BuildError as error:
        outcome, said = UNBUILT, str(error)
    else:
        with tempfile.TemporaryDirectory() as folder:
            outcome, said = _run(_problem_of(mutant.kernel), program, Path(folder))
    seconds = time.monotonic() - started
    return Result(mutant.kernel, mutant.operator, mutant.line, outcome, said, round(seconds, 2))


def table(results: Sequence[Result]) -> str:
    """Markdown: a row per operator, then every missed mutant."""
    outcomes = sorted({r.outcome for r in results} - {MISSED, UNBUILT})
    columns = ["built", "caught", MISSED, *outcomes]
    lines = [f"| edit | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    groups = [*dict.fromkeys(r.operator for r in results), "all"]
    for group in groups:
        counts = Counter(r.outcome for r in results if group in (r.operator, "all"))
        built = sum(counts.values()) - counts[UNBUILT]
        cells = [built, built - counts[MISSED], counts[MISSED], *(counts[o] for o in outcomes)]
        lines.append(f"| {group} | {' | '.join(str(cell or '') for cell in cells)} |")
    missed = [r for r in results if r.outcome == MISSED]
    lines += ["", "Missed:", ""] if missed else []
    lines += [f"- `{r.kernel}.cu` line {r.line}: {r.operator}" for r in missed]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Examines and prints; 1 if a shipped kernel itself is not right."""
    parser = argparse.ArgumentParser(prog="benchmarks.mutation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--kernel", action="append", help="name of a shipped kernel; default: all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    options = parser.parse_args(argv)
    names = options.kernel or shipped_names()
    Compiler(CACHE).engine()
    sources = {name: shipped_kernel(name).source for name in names}
    todo = [mutant for name, source in sources.items() for mutant in mutants(name, source)]
    whole = [Mutant(name, "none", 0, source) for name, source in sources.items()]
    started = time.monotonic()
    with ProcessPoolExecutor(options.jobs) as pool:
        wrong = [r for r in pool.map(examine, whole) if r.outcome != MISSED]
        for result in wrong:
            print(f"{result.kernel} itself: {result.outcome}: {result.said}", file=sys.stderr)
        results = list(pool.map(examine, todo))
    print(table(results))
    print(f"\n{len(results)} mutants of {len(whole)} kernels, {time.monotonic() - started:.0f} s")
    if options.json:
        options.json.write_text(json.dumps([vars(result) for result in results], indent=1))
    if options.markdown:
        options.markdown.write_text(table(results) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
