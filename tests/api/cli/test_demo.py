"""`pkforge demo` as a newcomer runs it, and how it ends when it is interrupted."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pk_runtime.bundle import read_bundle
from tests.api.cli.conftest import Run
from tests.api.serving import await_no_processes, processes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DEMO = (sys.executable, "-m", "api.cli", "demo", "--attempts", "2")


def test_it_ends_with_a_kernel_and_why_it_is_better(tmp_path: Path) -> None:
    ended = subprocess.run(DEMO, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr
    for text in ("attempt 1 (search): correct", "us simulated", "x baseline", "bottleneck"):
        assert text in ended.stderr
    for text in (
        *("best kernel", "proof", "why it is better", "knobs changed", "bundle"),
        *("page", "total time", "simulated"),
    ):
        assert text in ended.stdout
    found = re.search(r"^bundle +(\S+\.zip)", ended.stdout, re.MULTILINE)
    assert found is not None
    bundle = read_bundle(Path(found[1]))
    assert bundle.manifest["verdict"]["status"] == "correct"
    assert bundle.manifest["verdict"]["depth"] == "full"
    await_no_processes(tmp_path / ".pkforge" / "demo")


def _hear_interrupts() -> None:
    """A shell starts what runs in the background with SIGINT ignored, tests too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path, sent: signal.Signals) -> None:
    home = tmp_path / ".pkforge" / "demo"
    with subprocess.Popen(
        DEMO,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hear_interrupts,
    ) as demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            if "has started" in line:
                break
        assert processes_of(home)
        demo.send_signal(sent)
        rest = demo.communicate(timeout=60)[1]
    assert demo.returncode == 130, rest
    assert "everything it had started has ended" in rest
    await_no_processes(home)


def test_it_touches_no_folder_that_is_not_its_own(run: Run, tmp_path: Path) -> None:
    kept = tmp_path / ".pkforge" / "demo" / "precious"
    kept.parent.mkdir(parents=True)
    kept.write_text("kept")
    ran = run("demo")
    assert ran.code == 2
    assert "not a demo's folder" in ran.err
    assert kept.read_text() == "kept"
