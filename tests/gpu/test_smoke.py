"""The node's self-check: symmetric memory, kernels one process per GPU, graphs, torch.compile, CUDA
IPC, a defective kernel's report, torch.distributed. One run, one test per line of it."""

import re
import subprocess
import sys

import pytest

from pk_runtime.gpu.smoke import CHECKS, WHAT
from tests.gpu.kernels import ROOT

DEADLINE_S = 90.0
LINES = ("driver and devices", "every GPU's memory can be exported", "nvcc builds kernels")


@pytest.fixture(scope="module")
def said() -> str:
    command = (sys.executable, "-m", "pk_runtime.gpu.smoke")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S)
    return done.stdout + done.stderr


@pytest.mark.parametrize("what", [*LINES, *(WHAT[check] for check in CHECKS)])
def test_the_check_is_good(said: str, what: str) -> None:
    assert re.search(rf"^OK +{re.escape(what)}:", said, re.MULTILINE), said


def test_the_report_names_the_wait(said: str) -> None:
    pattern = r"dropped signal is reported: rank \d block 0 loader \(launch 0\) waits for signal"
    assert re.search(pattern, said), said
