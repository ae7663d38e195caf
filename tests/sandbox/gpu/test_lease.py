"""Judges of one machine take turns on its GPUs."""

import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.gpu.lease import GpusBusy, lease

ROOT = Path(__file__).parents[3]
HOLD = """
import sys
from sandbox.gpu.lease import lease
with lease(5, "\\0" + sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_judge_waits_for_the_first_even_if_it_is_killed() -> None:
    name = f"pkforge.test.{secrets.token_hex(8)}"
    argv = [sys.executable, "-c", HOLD, name]
    with subprocess.Popen(
        argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(GpusBusy, match="another judge"), lease(0.2, f"\0{name}"):
            pytest.fail("two judges hold the GPUs")
        other.kill()
        other.wait()
        with lease(5, f"\0{name}"):
            pass


def test_a_lease_ends_with_its_block() -> None:
    name = f"\0pkforge.test.{secrets.token_hex(8)}"
    for _ in range(2):
        with lease(1, name):
            pass
