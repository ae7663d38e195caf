"""Our kernels beside NCCL and every peer that runs here, side by side in one run.

    python3 -m benchmarks.gpu --json results.json
    python3 -m benchmarks.gpu.table results.json

Needs Python, torch, numpy and nvcc, 2 to 8 GPUs that reach each other, no network, no multicast.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import gemm_alone
from benchmarks.gpu.contenders import Built
from benchmarks.gpu.environment import SETTINGS, clocks, quiet_multicast
from benchmarks.gpu.points import Point, points
from benchmarks.gpu.rank_process import Plan, rank_main
from benchmarks.gpu.sweep import CACHE, first_line
from benchmarks.gpu.table import summary
from benchmarks.gpu.timing import PROTOCOL
from pk_runtime.calibrate.machine import describe
from pk_runtime.candidate import Candidate
from pk_runtime.compiler import BuildError, Compiler
from pk_runtime.kernels import shipped_kernel
from pk_runtime.toolchain import ToolchainError

FORMAT = 1
MAX_GPUS = 8
SILENCE_S = 60.0
MAX_STARTS = 12
LINK_GB_PER_S = 350.0
LINK_SOURCE = "SM-driven transfers with all GPUs busy, measured on 4x H200"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; exits with a message for a wrong one."""
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.gpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", type=Path, default=Path("gpu-bench.json"), metavar="OUT")
    parser.add_argument("--gpus", type=int, default=0, help="default: all, at most 8")
    parser.add_argument("--quick", action="store_true", help="a few rows, fewer rounds")
    parser.add_argument("--only", action="append", metavar="SECTION", help="e.g. fused")
    parser.add_argument(
        "--rows", action="append", metavar="TEXT", help="rows whose key has it: allreduce/64KiB"
    )
    parser.add_argument("--list", action="store_true", help="list sections and rows, and end")
    parser.add_argument("--seconds", type=float, default=440.0, help="no row begins later")
    parser.add_argument("--rounds", type=int, default=0, help="default: 15, or 5 with --quick")
    parser.add_argument(
        "--calibrate", type=Path, metavar="JSON", help="what pk_runtime.calibrate wrote: the limit"
    )
    parser.add_argument("--dispatch", type=Path, metavar="OUT.toml", help="write the table there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel builds")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"build cache; default {CACHE}")
    return parser.parse_args(argv)


def chosen(options: argparse.Namespace, world: int) -> list[Point]:
    """The rows that the options ask for."""
    rows = points(world)
    if options.quick and not (options.rows or options.only):
        rows = [row for row in rows if row.quick]
    if options.only:
        rows = [row for row in rows if row.section in options.only]
    if options.rows:
        rows = [row for row in rows if any(text in row.key for text in options.rows)]
    return rows


def build_all(rows: Sequence[Point], cache: Path, jobs: int) -> dict[str, tuple[Built, ...]]:
    """Every kernel with every setting of its knobs, by the row's key; failures are kept as such."""
    compiler = Compiler(cache)
    wanted = {(k, tuple(sorted(knobs.items()))) for row in rows for k, knobs in row.kernels}

    def build(choice: tuple[str, tuple[tuple[str, int], ...]]) -> Built:
        kernel, knobs = choice[0], dict(choice[1])
        try:
            candidate = Candidate("pk", shipped_kernel(kernel).files, knobs)
            library = compiler.library(candidate)
        except (KeyError, BuildError, ToolchainError) as error:
            return Built(kernel, knobs, problem=f"not built: {first_line(str(error))}")
        return Built(kernel, knobs, candidate.digest(), str(library))

    with ThreadPoolExecutor(jobs) as pool:
        built = dict(zip(wanted, pool.map(build, wanted), strict=True))
    return {
        row.key: tuple(built[kernel, tuple(sorted(knobs.items()))] for kernel, knobs in row.kernels)
        for row in rows
    }


class Run:
    """Starts the ranks, listens to them, and starts them again without what ended them."""

    def __init__(
        self,
        world: int,
        rows: Sequence[Point],
        built: dict[str, tuple[Built, ...]],
        rounds: int,
        seconds: float,
    ) -> None:
        self.world, self.rows, self.built, self.rounds = world, list(rows), built, rounds
        self.deadline = time.monotonic() + seconds
        self.results: dict[str, dict[str, Any]] = {}
        self.skip: dict[tuple[str, str], str] = {}
        self.late: dict[str, str] = {}
        self.starts: list[str] = []
        self.clocks: list[dict[str, Any]] = []
        self._running: tuple[str, str] | None = None

    def finish(self) -> None:
        """Runs until every row has a result or cannot have one."""
        while left := [r for r in self.rows if r.key not in self.results | self.late]:
            if len(self.starts) >= MAX_STARTS or time.monotonic() > self.deadline:
                self.late.update((row.key, "there was no time left") for row in left)
                return
            lost = self._start(tuple(left))
            self.starts.append(lost or "ended by itself")
            if lost is None:
                return
            print(f"  the processes were lost: {first_line(lost, 600)}", flush=True)
            if self._running is None or self._running in self.skip:
                self.late.update((row.key, lost) for row in left if row.key not in self.results)
                return
            self.skip[self._running] = lost

    def _start(self, rows: tuple[Point, ...]) -> str | None:
        """One set of processes, to its end (None) or its loss (why)."""
        context = multiprocessing.get_context("spawn")
        self._running = None
        with tempfile.TemporaryDirectory() as folder:
            store = str(Path(folder) / "store")
            plan = Plan(self.world, store, rows, self.built, self.skip, self.rounds, self.deadline)
            pipes, children = [], []
            for rank in range(self.world):
                ours, theirs = context.Pipe()
                child = context.Process(target=rank_main, args=(rank, plan, theirs), daemon=True)
                child.start()
                theirs.close()
                pipes.append(ours)
                children.append(child)
            try:
                return self._listen(pipes)
            finally:
                for child in children:
                    child.join(5.0)
                    if child.is_alive():
                        child.kill()
                        child.join(30.0)

    def _listen(self, pipes: list[Connection]) -> str | None:
        open_pipes = list(pipes)
        while open_pipes:
            ready = wait_for(open_pipes, SILENCE_S)
            if not ready:
                return f"no sign of life for {SILENCE_S:g} s"
            for pipe in ready:
                assert isinstance(pipe, Connection)
                try:
                    message = pipe.recv()
                except EOFError:
                    return f"rank {pipes.index(pipe)} ended without a word"
                if message[0] == "lost":
                    return str(message[1])
                if message[0] == "done":
                    open_pipes.remove(pipe)
                else:
                    self._take(message)
        return None

    def _take(self, message: tuple[Any, ...]) -> None:
        kind, key, *rest = message
        if kind == "begin":
            self._running = (key, rest[0])
        elif kind == "late":
            self.late[key] = "there was no time left"
        elif kind == "row":
            record, seconds = rest
            point = next(row for row in self.rows if row.key == key)
            self.results[key] = {**_about(point), "seconds": seconds, **record}
            self.clocks.append({"after": key, **clocks()})
            print(summary(self.results[key]), flush=True)


def _about(point: Point) -> dict[str, Any]:
    return {
        "key": point.key,
        "section": point.section,
        "op": point.op,
        "size": point.size,
        "problem": point.problem,
        "dims": dict(point.dims),
        "goal_us": point.goal_us,
    }


def link_limit(path: Path | None) -> tuple[float, str]:
    """GB/s per GPU and direction that count as 100 %, and where the number is from.

    ValueError if the file has no such measurement.
    """
    if path is None:
        return LINK_GB_PER_S, LINK_SOURCE
    record = json.loads(path.read_text(encoding="utf-8"))
    rates = [
        float(row["gb_per_s"])
        for section in ("store", "tma_store")
        for row in record.get("results", {}).get(section, [])
        if row["pattern"] == "all"
    ]
    if not rates:
        raise ValueError(f"{path} has no transfers with all GPUs busy: calibrate without --only")
    return max(rates), f"{path.name}, {record['date']}"


def wants_gemm(options: argparse.Namespace) -> bool:
    """Whether the options ask for the GEMM alone."""
    wanted = options.only is None or gemm_alone.SECTION in options.only
    return wanted and (not options.rows or any(text in "gemm/" for text in options.rows))


def gemm_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of the GEMM alone."""
    if not wants_gemm(options):
        return []
    shapes = gemm_alone.SHAPES[:1] if options.quick else gemm_alone.SHAPES
    rows = gemm_alone.measure_rows(options.cache, options.jobs, shapes)
    for row in rows:
        print(summary(row), flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; 1 if a row has no time of ours, 2 if nothing can be measured."""
    options = parse(sys.argv[1:] if argv is None else argv)
    begun = time.monotonic()
    world = options.gpus or min(torch.cuda.device_count(), MAX_GPUS)
    rows = chosen(options, world or 4)
    if options.list or not (rows or wants_gemm(options)):
        for row in rows or points(world or 4):
            print(f"{row.section:20} {row.key}")
        print(f"{gemm_alone.SECTION:20} gemm/")
        return 0 if options.list else 2
    try:
        if not 2 <= world <= torch.cuda.device_count():
            have = torch.cuda.device_count()
            raise ValueError(f"this needs 2 GPUs or more; there are {have}, and {world} asked for")
        limit, source = link_limit(options.calibrate)
    except (ValueError, OSError, KeyError) as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return 2
    quiet_multicast()
    before = clocks()
    built = build_all(rows, options.cache, options.jobs)
    print(f"built in {time.monotonic() - begun:.0f} s; {len(rows)} rows", flush=True)
    rounds = options.rounds or (5 if options.quick else 15)
    run = Run(world, rows, built, rounds, options.seconds - (time.monotonic() - begun))
    alone = gemm_rows(options)
    run.finish()
    record = {
        "format": FORMAT,
        "tool": "benchmarks.gpu",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "protocol": PROTOCOL,
        "rounds": rounds,
        "machine": describe(world),
        "environment": SETTINGS,
        "clocks": {"before": before, "during": run.clocks, "after": clocks()},
        "limit": {"gb_per_s": limit, "source": source},
        "starts": run.starts,
        "rows": [*alone, *(run.results[row.key] for row in rows if row.key in run.results)],
        "not_measured": run.late,
        "seconds": round(time.monotonic() - begun, 1),
    }
    options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{record['seconds']} s; written to {options.json}", flush=True)
    if options.dispatch:
        from benchmarks.gpu.dispatch_rows import write

        write(options.dispatch, record)
    complete = len(run.results) == len(rows)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
