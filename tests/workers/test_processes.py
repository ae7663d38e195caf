"""Processes of jobs: they end when told, when they do not listen, and with whoever started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers import examples
from workers.processes import JobProcess, descendants

ENVIRONMENT = {"PATH": os.defpath}


def program(text: str) -> list[str]:
    """A command that runs this text; the arguments a job's process gets come after it."""
    return [sys.executable, "-c", text]


def test_it_is_told_who_started_it(tmp_path: Path) -> None:
    said = tmp_path / "said"
    text = f"import sys; open({str(said)!r}, 'w').write(' '.join(sys.argv[1:]))"
    process = JobProcess([*program(text), "job_1"], ENVIRONMENT)
    examples.wait_for("it ends", lambda: process.poll() is not None)
    assert process.poll() == 0
    assert said.read_text() == f"job_1 --parent {os.getpid()}"


def test_it_ends_by_itself_when_drained() -> None:
    process = JobProcess(["sh", "-c", "trap 'exit 5' TERM; while :; do sleep 0.05; done"], {})
    examples.wait_for("it works", lambda: bool(descendants(process.pid)))
    process.drain()
    process.end(30.0)
    assert process.poll() == 5


def test_it_is_killed_with_its_group_when_it_does_not_listen() -> None:
    process = JobProcess(["sh", "-c", "trap '' TERM; sleep 600 & sleep 600"], ENVIRONMENT)
    examples.wait_for("it works", lambda: len(descendants(process.pid)) == 2)
    started = descendants(process.pid)
    process.drain()
    process.end(0.0)
    assert process.poll() == -signal.SIGKILL
    examples.wait_for("all of it is gone", lambda: not examples.processes_of(started))
    process.end(0.0)


def test_it_does_not_get_what_a_terminal_sends() -> None:
    process = JobProcess(["sleep", "600"], ENVIRONMENT)
    assert os.getsid(process.pid) == process.pid
    process.end(0.0)


def test_all_descendants_are_found() -> None:
    with subprocess.Popen(["sh", "-c", "sh -c 'sleep 600; :' & sleep 600"]) as shell:
        examples.wait_for("three processes", lambda: len(descendants(shell.pid)) == 3)
        for pid in descendants(shell.pid):
            os.kill(pid, signal.SIGKILL)
    assert descendants(2**22 + 1) == []


@pytest.mark.slow
def test_it_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    child = (
        "import sys, time; from workers.processes import die_with_parent; "
        "die_with_parent(int(sys.argv[-1])); print('armed', flush=True); time.sleep(600)"
    )
    parent = (
        "import sys, time; from workers.processes import JobProcess; "
        f"child = JobProcess([sys.executable, '-c', {child!r}], dict(PATH='')); "
        f"open({str(numbers)!r}, 'w').write(str(child.pid)); time.sleep(600)"
    )
    with subprocess.Popen(program(parent), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"armed\n"
        child_pid = int(numbers.read_text())
        assert examples.processes_of([child_pid]) == [child_pid]
        process.kill()
    examples.wait_for("the child is gone", lambda: not examples.processes_of([child_pid]))


@pytest.mark.slow
def test_abandoning_takes_all_along() -> None:
    text = (
        "import subprocess; from workers.processes import abandon; "
        "print(subprocess.Popen(['setsid', 'sleep', '600']).pid, flush=True); abandon()"
    )
    with subprocess.Popen(program(text), stdout=subprocess.PIPE) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 75
    pid = int(output)
    examples.wait_for("its child is gone", lambda: not examples.processes_of([pid]))
