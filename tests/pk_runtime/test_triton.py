"""Triton's peers on a CPU: real processes, one per rank, in Triton's interpreter."""

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is an optional dependency")

from tests.pk_runtime.triton_world import CHECKS, ROOT, run


def test_the_runtime_is_imported_without_triton() -> None:
    code = "import sys, pk_runtime, pk_runtime.torch_kernel; print('triton' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "False", done.stderr


PROGRAMS = {
    2: ("moves", "atomics", "half", "patterns", "refusals", "guide"),
    4: ("moves", "contention", "messages", "barriers", "patterns"),
}


@functools.cache
def found(ranks: int) -> dict[str, list[Any]]:
    """What the programs found: one run for all of them, as starting processes takes the time."""
    return run(*PROGRAMS[ranks], ranks=ranks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "program"),
    [(ranks, name) for ranks, names in PROGRAMS.items() for name in names if name in CHECKS],
)
def test_it_holds_between_processes(ranks: int, program: str) -> None:
    CHECKS[program](found(ranks)[program])


@pytest.mark.slow
def test_sums_of_16_bits_are_refused() -> None:
    owner, caller = found(2)["half"]
    assert "16 bits" in caller["refusal"]
    assert owner["value"] == 0


@pytest.mark.slow
def test_a_wait_that_nobody_answers_ends_and_is_reported() -> None:
    CHECKS["timeouts"](run("timeouts", ranks=2, timeout_s=1.0)["timeouts"])


@pytest.mark.slow
def test_the_examples_run_as_a_command() -> None:
    command = [sys.executable, "-m", "pk_runtime.triton.examples", "--patterns", "fused_sequential"]
    env = {"TRITON_INTERPRET": "1", "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == ["cublas_nccl", "cublas_nccl_unordered", "fused_sequential"]
    assert all(float(row[-1]) < 2**-4 for row in rows)


@pytest.mark.slow
def test_a_pattern_that_fails_hides_no_other(tmp_path: Path) -> None:
    code = """
import pathlib, sys
from pk_runtime.triton.examples.__main__ import run_all
run_all(["missing", "fused_sequential"], 2, [64], pathlib.Path(sys.argv[1]))
"""
    env = {"TRITON_INTERPRET": "1", "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    failed, right = done.stdout.splitlines()[2:]
    assert failed.startswith("missing")
    assert "No module named" in failed
    assert right.startswith("fused_sequential")
    assert float(right.split()[-1]) < 2**-4


def test_without_gpu_and_interpreter_the_way_out_is_named() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(AssertionError, match="set TRITON_INTERPRET=1"):
        run("moves", ranks=1, interpret=False)
