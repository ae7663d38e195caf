"""Breaks pk_runtime's GPU headers in one place at a time and runs them on the CPU.

    python3 -m benchmarks.mutation.runtime [--hazard H1] [--seeds 4] [--jobs 2] [--json OUT]
                                           [--markdown OUT]

Every mutant is compiled with a kernel that uses the place and run on two or three virtual GPUs,
three launches back to back, under one random order of threads after the other, until it is flagged
as it must be. The same kernels with the unchanged headers are run first, under all orders, and must
be clean.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.mutation.__main__ import _close, _problem_of
from benchmarks.mutation.runtime_mutants import RUNTIME_MUTANTS, RuntimeMutant, source_of
from pk_runtime.candidate import Candidate
from pk_runtime.emulator import Emulation, Emulator, EmulatorBuilder, Finding
from pk_runtime.emulator.builder import HEADERS
from pk_runtime.execution import LocalExecutor
from pk_runtime.kernels import shipped_names
from pk_runtime.simulator import TensorSpec

CACHE = Path(".pkforge") / "emulator"
LAUNCHES = 3
WALL_S = 120.0
DIMS = {"M": 64, "N": 64}


@dataclass(frozen=True)
class Result:
    """What became of a mutant: flagged as it must be, at the place, under schedule `seed`."""

    hazard: str
    what: str
    kernel: str
    caught: bool
    placed: bool
    kind: str
    seed: int
    seconds: float


def emulate(
    kernel: str,
    program: Path,
    folder: Path,
    *,
    dims: dict[str, int] | None = None,
    blocks: int = 1,
    seed: int = 0,
    world: int = 2,
) -> tuple[Emulation, bool]:
    """One run, and whether its outputs are right (a kernel of `sources/` has no problem: True)."""
    runner = Emulator(LocalExecutor(), folder)
    if kernel not in shipped_names():
        sizes = {**DIMS, **(dims or {})}
        shape = (sizes["M"], sizes["N"])
        make = torch.Generator().manual_seed(7)
        launches = [
            [{"x": torch.randn(shape, generator=make).bfloat16()} for _ in range(world)]
            for _ in range(LAUNCHES)
        ]
        specs = [TensorSpec("y", shape, torch.bfloat16)]
        run = runner.run(
            program, launches=launches, outputs=specs, blocks=blocks, seed=seed, wall_s=WALL_S
        )
        return run, True
    problem = _problem_of(kernel)
    sizes = dict(next(s for s in problem.shapes if s.name == "tiny").dims) | (dims or {})
    launches = [
        [problem.make_inputs(rank, world, number, sizes) for rank in range(world)]
        for number in range(LAUNCHES)
    ]
    specs = [
        TensorSpec(name, spec.shape, spec.dtype)
        for name, spec in problem.output_specs(sizes, world).items()
    ]
    run = runner.run(
        program, launches=launches, outputs=specs, blocks=blocks, seed=seed, wall_s=WALL_S
    )
    golden = [problem.golden(inputs) for inputs in launches]
    right = bool(run.outputs) and all(
        _close(mine[name], value)
        for got, want in zip(run.outputs, golden, strict=True)
        for mine, gold in zip(got, want, strict=True)
        for name, value in gold.items()
    )
    return run, right


def candidate_of(mutant: RuntimeMutant) -> Candidate:
    """The kernel that shows the mutant."""
    return Candidate("pk", {"kernel.cu": source_of(mutant.kernel)}, dict(mutant.knobs))


def judge(mutant: RuntimeMutant, run: Emulation, text: str) -> tuple[str, bool]:
    """(kind it was flagged as or "", whether a reported line is the place)."""
    if run.outcome in mutant.kinds:
        return run.outcome, mutant.place in run.summary
    found = [f for f in run.findings if f.kind in mutant.kinds]
    if not found:
        return "", False
    files = {mutant.header: text, "kernel.cu": source_of(mutant.kernel)}
    return found[0].kind, any(mutant.place in line for f in found for line in _named(f, files))


def _named(finding: Finding, files: dict[str, str]) -> list[str]:
    """Text of the source lines that a finding names."""
    lines = []
    for place in (*finding.first.lines, *finding.second.lines, *finding.culprit):
        name, _, number = place.rpartition(":")
        text = files.get(name) or _original(name)
        lines.append(text.splitlines()[int(number) - 1] if text else "")
    return lines


def _original(name: str) -> str:
    path = HEADERS / name
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def examine(
    mutant: RuntimeMutant, seeds: Sequence[int], folder: Path, cache: Path = CACHE
) -> Result:
    """Builds and runs one mutant under the seeds until it is flagged."""
    started = time.monotonic()
    text = mutant.header_text(_original(mutant.header))
    builder = EmulatorBuilder(cache, headers={mutant.header: text})
    program = builder.program(candidate_of(mutant))
    kind, placed, seed = "", False, -1
    for seed in seeds:
        run, _ = emulate(
            mutant.kernel, program, folder,
            dims=mutant.dims, blocks=mutant.blocks, seed=seed, world=mutant.world,
        )  # fmt: skip
        kind, placed = judge(mutant, run, text)
        if kind:
            break
    seconds = round(time.monotonic() - started, 2)
    told = f"{kind or 'MISSED'}{'' if placed else ', not at the place'}"
    print(f"{mutant.hazard} {mutant.what}: {told}, {seconds:.0f} s", file=sys.stderr, flush=True)
    return Result(
        mutant.hazard, mutant.what, mutant.kernel, bool(kind), placed, kind, seed, seconds
    )


def kernels(mutants: Sequence[RuntimeMutant]) -> list[RuntimeMutant]:
    """One mutant of each kernel, with its knobs, sizes and grid."""
    once = {
        (m.kernel, *sorted(m.knobs.items()), *sorted(m.dims.items()), m.blocks, m.world): m
        for m in mutants
    }
    return list(once.values())


def false_alarms(
    seeds: Sequence[int],
    folder: Path,
    mutants: Sequence[RuntimeMutant],
    cache: Path = CACHE,
) -> list[str]:
    """What is said of the unchanged headers: nothing, if all is well."""
    said = []
    for mutant in kernels(mutants):
        if mutant.kernel in ("one_slot_too_few", "add"):
            continue  # wrong by themselves
        program = EmulatorBuilder(cache).program(candidate_of(mutant))
        for seed in seeds:
            run, right = emulate(
                mutant.kernel, program, folder,
                dims=mutant.dims, blocks=mutant.blocks, seed=seed, world=mutant.world,
            )  # fmt: skip
            if run.outcome != "finished" or not right:
                said.append(f"{mutant.kernel}, seed {seed}: {run}")
    return said


def table(results: Sequence[Result]) -> str:
    """Markdown: one row per mutant."""
    lines = [
        "| hazard | edit | kernel | flagged as | place named | seed |",
        "|---|---|---|---|---|---|",
    ]
    for r in results:
        seed = str(r.seed) if r.caught else ""
        row = (
            r.hazard,
            r.what,
            f"`{r.kernel}`",
            r.kind or "**missed**",
            "yes" if r.placed else "no",
            seed,
        )
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Examines and prints; 1 if a mutant is missed or the headers themselves are flagged."""
    parser = argparse.ArgumentParser(prog="benchmarks.mutation.runtime", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--hazard", action="append", help="H1 to H18; default: all")
    parser.add_argument("--only", help="mutants whose description contains this")
    parser.add_argument("--seeds", type=int, default=4, help="orders of threads to try")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    todo = [m for m in RUNTIME_MUTANTS if not options.hazard or m.hazard in options.hazard]
    todo = [m for m in todo if not options.only or options.only in m.what]
    seeds, started = range(options.seeds), time.monotonic()
    EmulatorBuilder(CACHE).engine()
    with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(options.jobs) as pool:
        folder = Path(name)
        found = [pool.submit(false_alarms, seeds, folder, [mutant]) for mutant in kernels(todo)]
        examined = [pool.submit(examine, mutant, seeds, folder) for mutant in todo]
        alarms = [alarm for one in found for alarm in one.result()]
        results = [one.result() for one in examined]
    for alarm in alarms:
        print(alarm, file=sys.stderr)
    print(table(results))
    caught = sum(r.caught for r in results)
    placed = sum(r.placed for r in results)
    print(f"\n{len(results)} mutants, {caught} flagged, {placed} with the place, "
          f"{len(alarms)} false alarms, {time.monotonic() - started:.0f} s")  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    if options.markdown:
        options.markdown.write_text(table(results) + "\n", encoding="utf-8")
    return 1 if alarms or placed < len(results) else 0


if __name__ == "__main__":
    sys.exit(main())
