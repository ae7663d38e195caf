"""The sandbox of this node: it holds, CUDA works in it, and only with the devices it was given."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE_S = 60.0  # the check ends itself before


def test_cuda_in_the_sandbox() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sandbox.isolation.gpu_check"],
        cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
