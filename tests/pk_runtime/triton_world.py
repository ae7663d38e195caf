"""Runs the programs of triton_programs.py, one process per rank, and checks what they found."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pk_runtime.gpu.rendezvous import new_run_folder

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("triton_programs.py")
ROUNDS = 20
REPORT_LINES = 63


def run(
    *programs: str,
    ranks: int,
    interpret: bool = True,
    timeout_s: float = 20.0,
    wall_s: float = 110.0,
) -> dict[str, list[Any]]:
    """What each program returned on each rank; AssertionError with what failed ranks said at last.

    `timeout_s` bounds every wait on the device, which is the CPU if `interpret`; `wall_s` each
    process.
    """
    folder = new_run_folder()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": str(int(interpret))}

    failed: list[str] = []  # in the order in which ranks end: one that fails takes others along

    def one(rank: int) -> str:
        arguments = [str(rank), str(ranks), str(folder), str(timeout_s), *programs]
        command = [sys.executable, str(PROGRAMS), *arguments]
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=wall_s)
        except subprocess.TimeoutExpired:
            failed.append(f"rank {rank} was stopped after {wall_s:g} s")
            return ""
        if done.returncode:
            failed.append(f"rank {rank} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    with ThreadPoolExecutor(ranks) as pool:
        said = list(pool.map(one, range(ranks)))
    shutil.rmtree(folder, ignore_errors=True)  # gone already if all have met
    assert not failed, "\n".join(failed)
    results = [json.loads(text) for text in said]
    return {program: [result[program] for result in results] for program in programs}


def moves(results: list[Any]) -> None:
    ranks = len(results)
    addresses = {result["bases"][0] for result in results}
    assert len(addresses) > 1, "every process mapped rank 0's heap at the same address"
    spread = [100 * r + i if i < 10 else 0 for r in range(ranks) for i in range(16)]
    for rank, result in enumerate(results):
        assert result["x"] == spread
        loaded = [100 * rank + i if i < 4 else -1 for i in range(16)]
        assert result["y"] == loaded + spread[:16]
    for rank, result in enumerate(results):
        left = (rank - 1) % ranks
        put = [results[left]["y"][i] if r == left else 0 for r in range(ranks) for i in range(16)]
        copied = results[1]["y"][16:] if rank == ranks - 1 else [0] * 16
        assert result["z"] == put + copied


def atomics(results: list[Any]) -> None:
    at_home, caller = results[:2]
    assert at_home["x"][:9] == [6, 7, 2, 13, 0, -2, 40, 30, 3]
    assert at_home["x"][16:] == [0, 1, 2, 3, 4, 5, 0, 0]
    assert caller["old"] == [1, 2, 3, 4, 5, 6, 7, 3, 3]
    assert caller["x"] == [0] * 24


def contention(results: list[Any]) -> None:
    total = len(results) * ROUNDS
    assert results[0] == [total, total << 33, total / 2, total]


def messages(results: list[Any]) -> None:
    for result in results:
        assert result == {"bad": [0] * ROUNDS, "arrived": ROUNDS, "taken": ROUNDS}


def barriers(results: list[Any]) -> None:
    assert results == [{"wrong": 0, "epochs": 2 * ROUNDS}] * len(results)


def patterns(results: list[Any]) -> None:
    for errors in results:
        assert len(errors) == 5
        # One ulp of bf16, by which the interpreter rounds towards zero.
        assert max(errors.values()) < 2**-7, errors


def guide(results: list[Any]) -> None:
    for rank, ends in enumerate(results):
        left = (rank - 1) % len(results)
        assert ends == [10000 * left, 10000 * left + 1499]


def timeouts(results: list[Any]) -> None:
    publisher, waiter = results[:2]
    assert publisher["lines"] == 0
    assert waiter["came"] == [1, 0, 1]
    assert waiter["message"] == "rank 1 program 1 waits for 'turns'[1] >= 7, last seen 0"
    # One line each while there is room, and one that says how many more there were.
    assert waiter["lines"] == REPORT_LINES + 1


def refusals(results: list[Any]) -> None:
    for other_shape, too_large, different in results:
        assert other_shape.startswith("ValueError: workspace 'a' is (4,) of torch.int32, not (5,)")
        assert "join with more heap_bytes" in too_large
        assert "(1,) of torch.int32" in different
        assert "(2,) of torch.int32" in different


CHECKS: dict[str, Callable[[list[Any]], None]] = {
    check.__name__: check
    for check in (
        *(moves, atomics, contention, messages, barriers, patterns, refusals, guide),
        timeouts,
    )
}
"""By program; the last one leaves reports behind, so it comes last in a run of several."""
