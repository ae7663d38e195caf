"""Breaks the shipped kernels in one place at a time and counts what the simulator catches.

    python3 -m benchmarks.mutation [--kernel NAME] [--jobs 2] [--json OUT] [--markdown OUT]

Each mutant is built and run on 4 and on 2 ranks, at the problem's smallest and at its ragged shape,
three launches back to back, on 5 blocks and on 1, under three schedules each (eager, latest, a
random one), at last at the largest check shape under the eager one, until something is wrong: a
race, a deadlock, a fault, a wrong result, no end. The kernels themselves are run the same way first
and must be right. A mutant that nothing tells from the kernel is missed, unless `EQUIVALENT` says
why it is the same kernel. Exit code 1 if one is missed or a kernel blamed.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.mutation.operators import Mutant, mutants
from pk_runtime.candidate import Candidate
from pk_runtime.compiler import BuildError, Compiler
from pk_runtime.execution import LocalExecutor
from pk_runtime.exploration import Exploration, Grid
from pk_runtime.kernels import shipped as shipped_kernels
from pk_runtime.kernels import shipped_kernel, shipped_names, shipped_problems
from pk_runtime.run_folder import RankTensors
from pk_runtime.schedules import EAGER
from pk_runtime.sheet import load_sheet
from pk_runtime.simulator import Simulator, TensorSpec
from problems.contract import Problem, Shape
from problems.registry import get

CACHE = Path(".pkforge") / "mutants"
SCHEDULES = 3
LAUNCHES = 3
WALL_S, LARGE_WALL_S = 5.0, 30.0
MISSED, UNBUILT, SAME = "missed", "does not build", "equivalent"
# Mutants that are the same kernel: by kernel and edit, and why.
EQUIVALENT: dict[tuple[str, str], str] = {}
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


@dataclass(frozen=True)
class _Case:
    """Where and how often a mutant runs before the next case is tried."""

    world: int
    shape: Shape
    blocks: int
    schedules: int
    wall_s: float


def _cases(problem: Problem) -> Iterator[_Case]:
    """The quick ones first; the last one has more tasks than a ring has slots."""
    for world in (4, 2):
        for shape in problem.shapes:
            if shape.name in ("tiny", "odd") and problem.divides(shape.dims, world):
                yield from (_Case(world, shape, blocks, SCHEDULES, WALL_S) for blocks in (5, 1))
    largest = [shape for shape in problem.shapes if shape.kind == "check"][-1]
    if problem.divides(largest.dims, 4):
        yield _Case(4, largest, 5, 1, LARGE_WALL_S)


def _run(problem: Problem, program: Path, folder: Path) -> tuple[str, str]:
    """(outcome, summary) of the first run that is not right; (MISSED, "") if all are."""
    simulator, sheet = Simulator(LocalExecutor(), folder), load_sheet("h200x4")
    for case in _cases(problem):
        world, dims = case.world, case.shape.dims
        launches = [
            [problem.make_inputs(rank, world, number, dims) for rank in range(world)]
            for number in range(LAUNCHES)
        ]
        specs = problem.output_specs(dims, world)
        found = simulator.explore(
            program,
            launches=launches,
            outputs=[TensorSpec(name, spec.shape, spec.dtype) for name, spec in specs.items()],
            sheet=sheet,
            schedules=case.schedules,
            seed=case.blocks,
            grid=Grid(case.blocks),
            run_wall_s=case.wall_s,
            wall_s=LARGE_WALL_S,
        )
        golden = [problem.golden(inputs) for inputs in launches]
        for schedule, ran in found.outputs:
            if not _right(ran, golden):
                kind = "wrong result" if schedule == EAGER else "race"
                return kind, f"{world} ranks, {case.shape.name}, schedule {schedule}"
        if found.outcome != "finished":
            return _called(found), str(found.diagnosis.get("summary", ""))
    return MISSED, ""


def _called(found: Exploration) -> str:
    """What the outcome is called in the table; a deadlock by its class."""
    if found.outcome == "deadlock":
        return f"deadlock: {str(found.diagnosis.get('class', 'unknown')).replace('_', ' ')}"
    return _CALLED.get(found.outcome, found.outcome)


def _right(
    ran: Sequence[Sequence[RankTensors]], golden: Sequence[Sequence[Mapping[str, torch.Tensor]]]
) -> bool:
    return all(
        _close(mine[name], value)
        for got, want in zip(ran, golden, strict=True)
        for mine, gold in zip(got, want, strict=True)
        for name, value in gold.items()
    )


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
    if outcome == MISSED and (why := EQUIVALENT.get((mutant.kernel, mutant.operator))):
        outcome, said = SAME, why
    seconds = time.monotonic() - started
    return Result(mutant.kernel, mutant.operator, mutant.line, outcome, said, round(seconds, 2))


def table(results: Sequence[Result]) -> str:
    """Markdown: a row per operator, then every missed mutant."""
    outcomes = sorted({r.outcome for r in results} - {MISSED, UNBUILT, SAME})
    columns = ["built", "caught", MISSED, SAME, *outcomes]
    lines = [f"| edit | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    groups = [*dict.fromkeys(r.operator for r in results), "all"]
    for group in groups:
        counts = Counter(r.outcome for r in results if group in (r.operator, "all"))
        built = sum(counts.values()) - counts[UNBUILT]
        caught = built - counts[MISSED] - counts[SAME]
        cells = [built, caught, counts[MISSED], counts[SAME], *(counts[o] for o in outcomes)]
        lines.append(f"| {group} | {' | '.join(str(cell or '') for cell in cells)} |")
    for called in (MISSED, SAME):
        those = [r for r in results if r.outcome == called]
        lines += ["", f"{called.capitalize()}:", ""] if those else []
        lines += [f"- `{r.kernel}.cu` line {r.line}: {r.operator}. {r.said}" for r in those]
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
    return 1 if wrong or any(result.outcome == MISSED for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
