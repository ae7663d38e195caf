"""`python3 -m pk_runtime.triton.examples`: the five patterns on this node's GPUs, beside
cuBLAS + NCCL: each checked against torch, then timed, one process per GPU.

Each pattern has processes of its own, so that one that fails hides no other, and is timed alone.
Times are medians over iterations of the maximum over ranks, from the moment when all ranks are
ready until the result is complete, barriers included. With TRITON_INTERPRET=1 the patterns are
checked on the CPU (`--ranks 2 --sizes 64`) and nothing is timed.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from pk_runtime.execution import Command, Completed, Limits, LocalExecutor
from pk_runtime.gpu.rendezvous import new_run_folder
from pk_runtime.triton import INTERPRETED
from pk_runtime.triton.examples import PATTERNS
from pk_runtime.triton.examples.worker import BASELINES, PREPARE_S, TURN_S
from pk_runtime.unicast import LOCAL

_START_S = 20.0  # of a process, importing and all
_PREPARE_S = _START_S + PREPARE_S
_GIGABYTE = 1 << 30


class Group:
    """The processes of one pattern: started at once, timed when `turn` exists."""

    def __init__(self, name: str, ranks: int, sizes: list[int], scratch: Path) -> None:
        self.name, self.ranks = name, ranks
        self.ready = [scratch / f"{name}.{rank}.ready" for rank in range(ranks)]
        self.turn = scratch / f"{name}.turn"
        self.folder = new_run_folder()
        self.sizes = [str(size) for size in sizes]
        self.processes: list[Future[Completed]] = []

    def start(self, pool: ThreadPoolExecutor) -> None:
        """Starts one process per rank, which compile and check and then wait."""
        self.processes = [pool.submit(self._run, rank) for rank in range(self.ranks)]

    def settled(self) -> bool:
        """Whether every process is ready to be timed, or has ended."""
        return all(
            path.exists() or process.done()
            for path, process in zip(self.ready, self.processes, strict=True)
        )

    def results(self) -> list[dict[str, Any]]:
        """Lets the processes go on, waits for their end; what each rank printed. RuntimeError with
        what the first that failed said."""
        self.turn.touch()
        ends = [process.result() for process in self.processes]
        shutil.rmtree(self.folder, ignore_errors=True)  # gone already if all have met
        for rank, end in enumerate(ends):
            if not end.ok:
                said = _said(end.stderr.decode(errors="replace").strip().splitlines())
                how = f"signal {end.signal}" if end.exit_code is None else f"code {end.exit_code}"
                raise RuntimeError(f"rank {rank} ended with {how}: {' | '.join(said)}")
        return [json.loads(end.stdout.splitlines()[-1]) for end in ends]

    def _run(self, rank: int) -> Completed:
        arguments = (
            *("--rank", str(rank), "--ranks", str(self.ranks), "--sizes", *self.sizes),
            *("--folder", str(self.folder), "--ready", str(self.ready[rank])),
            *("--turn", str(self.turn)),
        )
        root = Path(__file__).parents[3]
        # house: environment, drivers, compilers and caches of this machine are found through it
        env = {**os.environ, **LOCAL, "PYTHONPATH": str(root)}
        module = "pk_runtime.triton.examples.worker"
        return LocalExecutor().run(
            Command(
                argv=(sys.executable, "-m", module, self.name, *arguments),
                workdir=root,
                read_only=(),
                env=env,
                limits=Limits(
                    wall_s=2 * _PREPARE_S + TURN_S * (len(PATTERNS) + len(BASELINES)),
                    memory_bytes=64 * _GIGABYTE,
                    file_bytes=16 * _GIGABYTE,
                ),
            )
        )


def _said(stderr: list[str]) -> list[str]:
    """The lines that matter: the last ones, or where a process was that took too long."""
    if any(line.startswith("Timeout (") for line in stderr):
        here = [line.strip() for line in stderr if "/triton/" in line]
        return ["it took too long", *here[:3]]
    return stderr[-3:]


def summary(results: list[dict[str, Any]], size: int) -> dict[str, Any]:
    """One size of one pattern over its ranks: error, and times in microseconds by mode."""
    ranks = [result[str(size)] for result in results]
    found: dict[str, Any] = {"error": max(rank["error"] for rank in ranks)}
    for mode in ("eager", "graph"):
        if all(mode in rank for rank in ranks):
            slowest = [max(times) for times in zip(*(rank[mode] for rank in ranks), strict=True)]
            found[f"{mode}_us"] = round(statistics.median(slowest), 1)
    problems = [rank["graph_failed"] for rank in ranks if "graph_failed" in rank]
    return {**found, "graph_failed": problems[0]} if problems else found


def main() -> int:
    """Prints a table; 1 if a pattern failed."""
    parser = argparse.ArgumentParser(prog="python3 -m pk_runtime.triton.examples")
    parser.add_argument("--ranks", type=int, default=2 if INTERPRETED else None)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[64] if INTERPRETED else [4096, 8192]
    )
    parser.add_argument("--patterns", nargs="+", choices=PATTERNS, default=list(PATTERNS))
    parser.add_argument("--json", type=Path, help="write the results there, too")
    given = parser.parse_args()
    ranks = given.ranks or torch.cuda.device_count()
    if not INTERPRETED and not 1 < ranks <= torch.cuda.device_count():
        print(
            f"{ranks} ranks need as many GPUs, two at least, and here are "
            f"{torch.cuda.device_count()}: set TRITON_INTERPRET=1 to check on the CPU",
            file=sys.stderr,
        )
        return 2
    scratch = Path(tempfile.mkdtemp(prefix="pkforge-triton-"))
    try:
        report = run_all([*BASELINES, *given.patterns], ranks, given.sizes, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if given.json:
        given.json.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if any("failed" in found for found in report["patterns"].values()) else 0


def run_all(names: list[str], ranks: int, sizes: list[int], scratch: Path) -> dict[str, Any]:
    """Runs the patterns, prints a row for each size, and returns what was found by pattern: by size
    what `summary` says, or "failed" and why. `scratch` is a folder for the processes' signs."""
    where = "Triton's interpreter" if INTERPRETED else torch.cuda.get_device_name(0)
    print(f"GEMM + all-scatter, bf16, M = N = K, {ranks} ranks, {where}, torch {torch.__version__}")
    print(f"{'':24}{'size':>6}{'eager us':>11}{'graph us':>11}{'max error':>11}")
    groups = [Group(name, ranks, sizes, scratch) for name in names]
    report: dict[str, Any] = {"ranks": ranks, "where": where, "dtype": "bfloat16", "patterns": {}}
    pool = ThreadPoolExecutor(ranks * len(groups))
    try:
        for group in groups:
            group.start(pool)
        deadline = time.monotonic() + _PREPARE_S
        while not all(group.settled() for group in groups) and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        for group in groups:
            report["patterns"][group.name] = _report(group, sizes)
    finally:
        for group in groups:
            group.turn.touch()
        pool.shutdown()
    return report


def _report(group: Group, sizes: list[int]) -> dict[str, Any]:
    try:
        results = group.results()
    except RuntimeError as error:
        print(f"{group.name:24}failed: {error}", flush=True)
        return {"failed": str(error)}
    found = {str(size): summary(results, size) for size in sizes}
    for size, row in found.items():
        eager, graph = row.get("eager_us", "-"), row.get("graph_us", "-")
        print(f"{group.name:24}{size:>6}{eager:>11}{graph:>11}{row['error']:>11.4f}", flush=True)
        if "graph_failed" in row:
            print(f"{'':24}no graph: {row['graph_failed']}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
