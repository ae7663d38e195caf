"""The child processes of the GPU tests and the small kernels they run, without a GPU."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pk_runtime.compiler import Compiler
from pk_runtime.execution import LocalExecutor
from pk_runtime.sheet import load_sheet
from pk_runtime.simulator import FunctionalRun, Simulator, TensorSpec
from tests.gpu import budget, children
from tests.gpu.defects import DEFECTS, Defect, source
from tests.gpu.kernels import CACHE, EXAMPLES, ROOT, all_kernels

MODULE = "tests.pk_runtime.child_tasks"
PK_DEFECTS = [defect for defect in DEFECTS if defect.kernel == "ring"]
SIMULATED = {
    "report": ("deadlock", "fault"),
    "wrong": ("finished", "race"),
    "stopped": ("timeout",),
}


def run(task: str, deadline_s: float = 20.0, **arguments: object) -> children.Child:
    return children.run(task, arguments, deadline_s=deadline_s, module=MODULE)


def test_a_child_answers_and_ends() -> None:
    child = run("add", a=1, b=2)
    assert (child.of("sum"), child.trouble) == ([{"event": "sum", "sum": 3}], "")


def test_a_child_that_hangs_is_stopped() -> None:
    child = run("hang", deadline_s=0.5)
    assert child.trouble == "still running after 0.5 s; it was stopped"
    assert child.of("before") != []
    with pytest.raises(ProcessLookupError):
        os.kill(int(child.of("before")[0]["pid"]), 0)


def test_a_child_that_dies_says_how() -> None:
    assert run("die").trouble == "ended with exit code 3: last words"
    assert "ValueError: no such thing" in run("fail").trouble


def test_a_report_is_the_last_that_a_child_says() -> None:
    child = run("report")
    assert (child.trouble, child.of("after")) == ("rank 0 waits", [])


def test_when_the_time_is_over_no_child_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_end", math.inf)
    budget.start(2.0)
    assert run("hang", deadline_s=60.0).trouble.endswith("it was stopped")
    assert budget.left() == 0
    assert (run("add", a=1, b=2).trouble, run("add", a=1, b=2).seconds) == (children.NO_TIME, 0)


@pytest.mark.slow
def test_the_gpu_tests_end_in_time_and_say_what_was_not_run(tmp_path: Path) -> None:
    text = "from tests.gpu import kernels\nkernels.hoppers = lambda: (2, 2)\n"
    (tmp_path / "pretends_gpus.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-c", "tests/gpu/node.ini", "--rootdir=."]
    set_here = {"GPU_TEST_SECONDS": "0.1", "COLUMNS": "400", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command += ["--confcutdir=.", "-q", "-p", "no:cacheprovider", "-p", "no:timeout"]
    done = subprocess.run(
        [*command, "-p", "pretends_gpus", "tests/gpu/test_smoke.py", "tests/gpu/test_sandbox.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, **set_here},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    lines = done.stdout.splitlines()
    (stopped,) = [line for line in lines if line.startswith("FAILED")]
    rest = [line for line in lines if line.startswith("ERROR")]
    assert "test_sandbox.py" in stopped, "the cheapest one comes first"
    assert "stopped when 0.1 s for all tests were over" in stopped
    assert rest
    assert all("not run for lack of time: 0.1 s are over" in line for line in rest)


def test_every_shipped_kernel_and_example_has_a_name_of_its_own() -> None:
    kernels = (*all_kernels(), *EXAMPLES)
    assert len({str(kernel) for kernel in kernels}) == len(kernels)
    assert {kernel.name for kernel in EXAMPLES} == {"raw_allreduce", "raw_allgather"}
    assert all(kernel.candidate.language == "cuda" for kernel in EXAMPLES)


def simulated(defect: Defect | None, workspace: Path) -> FunctionalRun:
    import torch

    candidate = defect.candidate() if defect else source("ring")
    inputs = [{"x": torch.full((64, 64), rank + 1.0, dtype=torch.bfloat16)} for rank in range(4)]
    return Simulator(LocalExecutor(), workspace).functional(
        Compiler(CACHE).simulator(candidate),
        launches=[inputs],
        outputs=[TensorSpec("y", (64, 64), torch.bfloat16)],
        sheet=load_sheet("h200x4"),
        schedule_seed=2,
        wall_s=3.0,
    )


@pytest.mark.slow
def test_the_ring_is_right_in_the_simulator(tmp_path: Path) -> None:
    found = simulated(None, tmp_path)
    assert [float(rank["y"].float().mean()) for rank in found.outputs[0]] == [4.0, 1.0, 2.0, 3.0]


@pytest.mark.slow
@pytest.mark.parametrize("defect", PK_DEFECTS, ids=str)
def test_a_defect_is_one_in_the_simulator_too(defect: Defect, tmp_path: Path) -> None:
    found = simulated(defect, tmp_path)
    assert found.outcome in SIMULATED[defect.outcome]
    if found.outcome == "finished":
        assert [float(rank["y"].float().mean()) for rank in found.outputs[0]] != [4, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.usefixtures("needs_nvcc")
@pytest.mark.parametrize("kernel", ["ring", "raw_ring"])
def test_the_kernels_of_the_gpu_tests_compile(kernel: str) -> None:
    compiler = Compiler(CACHE)
    candidates = [source(kernel), *(d.candidate() for d in DEFECTS if d.kernel == kernel)]
    for candidate in candidates:
        assert compiler.cubin(candidate).is_file()
