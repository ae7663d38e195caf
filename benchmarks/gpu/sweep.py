"""Times every combination of a kernel's knobs on the GPUs of this machine and sorts them.

    python3 -m benchmarks.gpu.sweep --kernel gemm_reducescatter \
        --dims M=8192,N=8192,K=8192 --knobs "stages=3,4;super_m=1,8;comm_sms=0,16" --seconds 60

All combinations are built at once on all cores; those that do not build are listed. One process
drives all GPUs (so sizes under about 20 us are pessimistic), each combination is a CUDA graph of
several launches on every GPU, and the combinations take turns, so that clocks and temperature are
the same for all. A time is the maximum over GPUs; the table has median, minimum and maximum over
the turns. Every output is compared with the exact result before and after. The GPUs' caches are
not flushed. A kernel that hangs or gives up costs its process and its turn, not the sweep.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pk_runtime.kernels
from benchmarks.gpu.environment import quiet_multicast
from benchmarks.gpu.sweep_process import GEMM_ALONE, Job, Measured, measure
from pk_runtime.candidate import Candidate, declared_knobs
from pk_runtime.compiler import BuildError, Compiler
from pk_runtime.kernels import shipped, shipped_problems
from pk_runtime.toolchain import ToolchainError
from problems.contract import Problem
from problems.registry import get

CACHE = Path(".pkforge") / "gpu-cache"


@dataclass(frozen=True)
class Failed:
    """A combination that was not timed, and why."""

    knobs: str
    why: str


def parse_dims(text: str) -> dict[str, int]:
    """`M=8192,N=4096` as a dictionary; ValueError says what is wrong."""
    dims = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not (name and equals and value.isdecimal() and int(value) > 0):
            raise ValueError(f"--dims: {part!r} is not NAME=NUMBER, as in M=8192,N=8192,K=8192")
        dims[name] = int(value)
    return dims


def check_dims(problem: Problem, dims: dict[str, int]) -> None:
    """ValueError unless `dims` has exactly the letters of the problem's own shapes."""
    letters = set(problem.shapes[0].dims)
    if set(dims) != letters:
        wanted = ", ".join(sorted(letters))
        raise ValueError(f"--dims: {problem.slug} has the dims {wanted}; given: {', '.join(dims)}")


def parse_knobs(text: str, source: str) -> list[dict[str, int]]:
    """All combinations of `stages=3,4;super_m=*`; `*` is every value the source allows.

    ValueError names an unknown knob or a value that is none; values outside the declared ones are
    left to the build, which lists them.
    """
    declared = {knob.name: knob.values for knob in declared_knobs(source)}
    choices: dict[str, list[int]] = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        name, _, values = (piece.strip() for piece in part.partition("="))
        if name not in declared:
            known = ", ".join(declared) or "none"
            raise ValueError(f"--knobs: the kernel declares no knob {name!r}; it has: {known}")
        try:
            choices[name] = (
                list(declared[name]) if values == "*" else [int(v) for v in values.split(",")]
            )
        except ValueError:
            raise ValueError(f"--knobs: {part!r} is not NAME=NUMBER,NUMBER or NAME=*") from None
    return [
        dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    ]


def find_kernel(name: str, problem: str | None) -> tuple[Candidate, str]:
    """A kernel by shipped name or path of a file, and the problem it solves; ValueError if unknown.

    The problem of a shipped kernel is known; for any other file it has to be given.
    """
    folder = Path(pk_runtime.kernels.__file__).parent
    path = Path(name) if name.endswith(".cu") else folder / f"{name}.cu"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.cu")))
        raise ValueError(f"--kernel: there is no {path}; shipped: {known}; or give a .cu file")
    candidate = Candidate("pk", {"kernel.cu": path.read_text(encoding="utf-8")})
    slugs = [
        slug
        for slug in shipped_problems()
        if any(other.source == candidate.source for other in shipped(slug))
    ]
    if problem is None and not slugs:
        raise ValueError(f"--problem: say which problem {path} solves")
    return candidate, problem or slugs[0]


def label(knobs: dict[str, int]) -> str:
    """`stages=3 super_m=1`."""
    return " ".join(f"{name}={value}" for name, value in knobs.items()) or "defaults"


def build_all(
    candidate: Candidate, combinations: Sequence[dict[str, int]], cache: Path, jobs: int
) -> tuple[list[tuple[str, Path]], list[Failed]]:
    """Builds every combination, `jobs` at a time: (knobs, library) of the good ones; the rest."""
    compiler = Compiler(cache)

    def build(knobs: dict[str, int]) -> tuple[str, Path] | Failed:
        try:
            library = compiler.library(Candidate(candidate.language, candidate.files, knobs))
        except (BuildError, ToolchainError) as error:
            return Failed(label(knobs), f"does not build: {first_line(str(error))}")
        return label(knobs), library

    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(build, combinations))
    good = [result for result in results if not isinstance(result, Failed)]
    return good, [result for result in results if isinstance(result, Failed)]


def first_line(text: str, limit: int = 220) -> str:
    """The first line of a message, shortened."""
    line = text.strip().splitlines()[0] if text.strip() else "no message"
    return line if len(line) <= limit else line[: limit - 3] + "..."


def table(measured: Sequence[Measured], flops: float, nvlink_bytes: float) -> str:
    """The times, fastest first; TFLOP/s and GB/s count what the problem needs on one rank."""
    lines = ["    us   (min     max)  TFLOP/s   GB/s  turns  result       blocks  knobs"]
    for row in sorted(measured, key=lambda m: statistics.median(m.times_us)):
        us = statistics.median(row.times_us)
        rates = f"{flops / us / 1e6:7.1f} {nvlink_bytes / us / 1e3:6.1f}"
        if row.knobs == GEMM_ALONE:
            rates = f"{flops / us / 1e6:7.1f}      -"
        lines.append(
            f"{us:8.2f} {min(row.times_us):7.2f} {max(row.times_us):7.2f}  {rates} "
            f"{len(row.times_us):6}  {row.result:11} {row.blocks or '-':>7}  {row.knobs}"
        )
    return "\n".join(lines)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; exits with a message for a wrong one."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu.sweep", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--kernel", required=True, help="name of a shipped kernel, or a .cu file")
    parser.add_argument("--problem", help="slug; needed for a kernel that is not shipped")
    parser.add_argument(
        "--dims", required=True, action="append", help="M=8192,N=8192,K=8192; several times: each"
    )
    parser.add_argument("--knobs", default="", help='"stages=3,4;super_m=*"; default: defaults')
    parser.add_argument("--seconds", type=float, default=60.0, help="for timing, per --dims")
    parser.add_argument("--world", type=int, default=0, help="GPUs to use; default: all, at most 8")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel builds")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"build cache; default {CACHE}")
    parser.add_argument("--timeout", type=float, default=2.0, help="of a wait in a kernel, seconds")
    parser.add_argument("--eager", action="store_true", help="launch from Python, not as graphs")
    parser.add_argument("--build-only", action="store_true", help="build, list failures, and end")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Builds, times and prints; 1 if nothing could be timed, 2 for a wrong command line."""
    options = parse(sys.argv[1:] if argv is None else argv)
    try:
        sizes = [parse_dims(text) for text in options.dims]
        candidate, slug = find_kernel(options.kernel, options.problem)
        combinations = parse_knobs(options.knobs, candidate.source)
        problem = get(slug)
        for dims in sizes:
            check_dims(problem, dims)
    except (ValueError, LookupError) as error:
        print(f"sweep: {error}", file=sys.stderr)
        return 2
    quiet_multicast()
    print(f"{options.kernel}: building {len(combinations)} combinations", flush=True)
    libraries, unbuilt = build_all(candidate, combinations, options.cache, options.jobs)
    for failed in unbuilt:
        print(f"  {failed.knobs}: {failed.why}")
    if options.build_only or not libraries:
        return 0 if libraries else 1
    records, timed = [], False
    for dims in sizes:
        size = " ".join(f"{name}={value}" for name, value in dims.items())
        print(f"\n{options.kernel}, {size}: timing {len(libraries)} combinations", flush=True)
        alone = [(GEMM_ALONE, Path())] if problem.baseline(dims, 4).gemm else []
        entries = (*alone, *libraries)
        job = Job(
            *(slug, dims, options.world, entries, options.seconds, options.timeout, options.eager)
        )
        measured, failures, world = measure(job)
        if measured:
            timed = True
            flops, sent = problem.flops(dims, world), problem.nvlink_bytes(dims, world)
            print(table(measured, flops, sent))
        for name, why in failures:
            print(f"  not timed: {name}: {first_line(why, 500)}")
        records.append(
            {
                "kernel": options.kernel,
                "problem": slug,
                "dims": dims,
                "world_size": world,
                "times": [vars(row) for row in measured],
                "failed": [*map(list, failures), *([f.knobs, f.why] for f in unbuilt)],
            }
        )
    if options.json:
        options.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    return 0 if timed else 1


if __name__ == "__main__":
    sys.exit(main())
