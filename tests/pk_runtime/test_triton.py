"""Triton's peers on a CPU: real processes, one per rank, in Triton's interpreter."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pk_runtime.gpu.rendezvous import new_run_folder

pytest.importorskip("triton", reason="Triton is an optional dependency")

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).with_name("triton_programs.py")
ROUNDS = 20


def run(program: str, ranks: int, timeout_s: float = 20.0, interpret: str = "1") -> list[Any]:
    """What the program returned on each rank; fails with what a rank said before it died."""
    folder = new_run_folder()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_INTERPRET": interpret}

    def one(rank: int) -> subprocess.CompletedProcess[str]:
        arguments = [program, str(rank), str(ranks), str(folder), str(timeout_s)]
        command = [sys.executable, str(PROGRAMS), *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)

    with ThreadPoolExecutor(ranks) as pool:
        done = list(pool.map(one, range(ranks)))
    for rank, process in enumerate(done):
        assert process.returncode == 0, f"rank {rank}: {process.stderr}"
    return [json.loads(process.stdout) for process in done]


def test_the_runtime_is_imported_without_triton() -> None:
    code = "import sys, pk_runtime, pk_runtime.torch_kernel; print('triton' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_data_moves_between_ranks_whose_heaps_lie_elsewhere(ranks: int) -> None:
    results = run("moves", ranks)
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


@pytest.mark.slow
def test_every_atomic_acts_on_the_peer_and_returns_what_was_there() -> None:
    at_home, caller = run("atomics", 2)
    assert at_home["x"][:9] == [6, 7, 2, 13, 0, -2, 40, 30, 3]
    assert at_home["x"][16:] == [0, 1, 2, 3, 4, 5, 0, 0]
    assert caller["old"] == [1, 2, 3, 4, 5, 6, 7, 3, 3]
    assert caller["x"] == [0] * 24
    assert "16 bits" in caller["refusal"]
    assert at_home["half"] == 0


@pytest.mark.slow
def test_atomics_and_locks_hold_between_four_processes() -> None:
    total = 4 * ROUNDS
    assert run("contention", 4)[0] == [total, total << 33, total / 2, total]


@pytest.mark.slow
def test_a_wait_sees_what_was_stored_before_the_signal() -> None:
    for result in run("messages", 4):
        assert result == {"bad": [0] * ROUNDS, "arrived": ROUNDS, "taken": ROUNDS}


@pytest.mark.slow
def test_barriers_hold_back_to_back_with_late_ranks() -> None:
    assert run("barriers", 4) == [{"wrong": 0, "epoch": 2 * ROUNDS}] * 4


@pytest.mark.slow
def test_a_wait_that_nobody_answers_ends_and_is_reported() -> None:
    publisher, waiter = run("timeouts", 2, timeout_s=1.0)
    assert publisher["lines"] == 0
    assert waiter["came"] == [1, 0, 1]
    assert waiter["message"] == ("rank 1 program 1 waits for 'turns'[1] >= 7, last seen 0")
    # The first 63 lines, and how many more there were.
    assert waiter["lines"] == 64


@pytest.mark.slow
def test_the_host_refuses_what_cannot_be_had() -> None:
    for said in run("refusals", 2):
        other_shape, too_large, different = said
        assert other_shape.startswith("ValueError: workspace 'a' is (4,) of torch.int32, not (5,)")
        assert "join with more heap_bytes" in too_large
        assert "(1,) of torch.int32" in different
        assert "(2,) of torch.int32" in different


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_five_patterns_compute_the_product_on_every_rank(ranks: int) -> None:
    for errors in run("patterns", ranks):
        assert len(errors) == 5
        # One ulp of bf16, by which the interpreter rounds towards zero.
        assert max(errors.values()) < 2**-7, errors


def test_without_gpu_and_interpreter_the_way_out_is_named() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(AssertionError, match="set TRITON_INTERPRET=1"):
        run("moves", 1, interpret="0")
