"""Measures every problem of the catalogue and writes `problems/catalogue/calibration.json`.

    python3 -m benchmarks.calibration [--problem SLUG] [--table | --seeds 100]

To be run after a change of a problem, a tolerance or the in-process group; takes minutes. The
file has no date and depends on nothing but the code, up to the last bits of a CPU's GEMM.
`--table` prints it as Markdown, for docs/problems.md, and measures nothing. `--seeds` asks instead
how often an honest variant is refused: many draws at the small shapes, on 2, 4 and 8 ranks; writes
nothing. Exit code 1 if one is.
"""

import argparse
import functools
import itertools
import json
import math
import sys
from collections.abc import Sequence
from typing import Any

import torch

from problems.answers.compare import Checker
from problems.calibration import FILE, calibration_of, stored
from problems.contract import Problem, Tensors
from problems.description import dtype_name
from problems.hosting import InProcessHost
from problems.lint.controls import WORLD_SIZES, lint
from problems.lint.noise import Noise, honest_variants, noise_of
from problems.reference.ranks import Run, run
from problems.reference.variants import RING, Variant
from problems.registry import catalogue
from problems.scales import span_of

DIGITS = 3


def measured(problem: Problem, shape: str) -> dict[str, Any]:
    """The entry of one check shape; raises ValueError if the lint refuses the problem there."""
    report = lint(problem, shapes=[shape])
    if not report.ok:
        raise ValueError(f"{problem.slug} at {shape}: {report.findings[0].message}")
    told = report.to_json()
    noise = {
        name: {kind: _rounded(share) for kind, share in shares.items()}
        for name, shares in told["noise"].items()
    }
    return {
        "limits": _set_by(problem, shape),
        "gap": _rounded(told["gap"]),
        "signal": _rounded(told["signal"]),
        "noise": noise,
    }


def entry(problem: Problem) -> dict[str, Any]:
    """The entry of a problem: every check shape."""
    shapes = [shape for shape in problem.shapes if shape.kind == "check"]
    return {
        "tolerance": problem.tolerance,
        "dtype": dtype_name(problem.dtype),
        "scales": list(span_of(problem, shapes[0].dims, WORLD_SIZES[0])),
        "shapes": {shape.name: measured(problem, shape.name) for shape in shapes},
    }


def table() -> str:
    """The file as Markdown, a row for each problem whose results may be rounded."""
    lines = [
        "| problem | limit set by | gap | signal | largest noise | largest rms noise |",
        "|---|---|---|---|---|---|",
    ]
    for slug in stored():
        found = calibration_of(slug)
        if found is None or not found.noise:
            continue
        gap = f"{found.gap:.3g}" if math.isfinite(found.gap) else "never finite"
        by_max = max(found.noise, key=lambda name: found.noise[name].max)
        by_rms = max(found.noise, key=lambda name: found.noise[name].rms)
        lines.append(
            f"| `{slug}` | {', '.join(found.limits)} | {gap} | {found.signal:.3g} "
            f"| {found.noise[by_max].max:.2g} (`{by_max}`) "
            f"| {found.noise[by_rms].rms:.2g} (`{by_rms}`) |"
        )
    return "\n".join(lines)


def _set_by(problem: Problem, shape: str) -> list[str]:
    """Which parts of the rule set the limits of every rank's outputs, for one draw."""
    world_size = max(WORLD_SIZES)
    made = InProcessHost(problem).materialize(shape, world_size, 1)
    checker = Checker(problem, made.golden, made.reference)
    outputs = [(rank, name) for rank in range(world_size) for name in problem.output_names]
    return sorted({checker.rule(rank, name).set_by for rank, name in outputs})


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def _again(problem: Problem, inputs: Sequence[Tensors], variant: Variant) -> Run:
    return run(problem, inputs, variant=variant)


def many(problem: Problem, seeds: int) -> int:
    """Prints the most noise of as many draws of each small case; how many results were refused."""
    refused = 0
    for shape, world_size in itertools.product(("tiny", "odd"), (2, 4, 8)):
        if problem.tolerance == "T0" or not problem.divides(problem.shape(shape).dims, world_size):
            continue
        worst: dict[str, Noise] = {}
        for seed in range(seeds):
            made = InProcessHost(problem).materialize(shape, world_size, seed)
            checker = Checker(problem, made.golden, made.reference)
            again = functools.partial(_again, problem, made.inputs)
            for name, results in honest_variants(made.golden, again(RING), again):
                noise = noise_of(checker, results)
                worst[name] = worst.get(name, noise).most(noise)
                refused += noise.max > 1 or noise.rms > 1
        told = ", ".join(f"{name} {noise.max:.2f} {noise.rms:.2f}" for name, noise in worst.items())
        print(f"{problem.slug} {shape} on {world_size} ranks: {told}", flush=True)
    return refused


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and writes, or prints."""
    parser = argparse.ArgumentParser(prog="benchmarks.calibration", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--problem", choices=[problem.slug for problem in catalogue()])
    parser.add_argument("--table", action="store_true", help="print the file as Markdown")
    parser.add_argument("--seeds", type=int, help="measure the noise of as many draws")
    chosen = parser.parse_args(arguments)
    if chosen.table:
        print(table())
        return 0
    torch.set_num_threads(1)
    if chosen.seeds:
        asked = [p for p in catalogue() if chosen.problem in (None, p.slug)]
        return 1 if sum(many(problem, chosen.seeds) for problem in asked) else 0
    known = dict(stored()) if FILE.is_file() else {}
    entries = {}
    for problem in catalogue():
        if chosen.problem in (None, problem.slug):
            print(f"{problem.slug} ...", file=sys.stderr, flush=True)
            entries[problem.slug] = entry(problem)
        elif problem.slug in known:
            entries[problem.slug] = dict(known[problem.slug])
    FILE.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
