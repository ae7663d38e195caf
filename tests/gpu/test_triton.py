"""Triton's peers on GPUs: the programs that run in the interpreter too, and the five patterns."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is an optional dependency")

from tests.gpu import budget
from tests.gpu.kernels import world
from tests.pk_runtime.triton_world import CHECKS, ROOT, run


def test_the_programs_of_the_interpreter_give_the_same_on_gpus() -> None:
    programs = [program for program in CHECKS if program != "timeouts"]
    results = run(*programs, ranks=world(), interpret=False, wall_s=budget.within(60))
    for program in programs:
        CHECKS[program](results[program])


def test_a_wait_that_nobody_answers_ends_and_is_reported() -> None:
    results = run(
        "timeouts", ranks=world(), interpret=False, timeout_s=2.0, wall_s=budget.within(60)
    )
    CHECKS["timeouts"](results["timeouts"])


def test_the_five_patterns_are_right_and_timed_eager_and_in_a_graph(tmp_path: Path) -> None:
    out = tmp_path / "patterns.json"
    command = [sys.executable, "-m", "pk_runtime.triton.examples", "--sizes", "1024"]
    done = subprocess.run(
        [*command, "--ranks", str(world()), "--json", str(out)],
        cwd=ROOT, capture_output=True, text=True, timeout=70,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    patterns = json.loads(out.read_text())["patterns"]
    assert len(patterns) == 7
    for found in patterns.values():
        assert {"eager_us", "graph_us", "error"} == set(found["1024"])
