"""The local executor: limits that hold, output that is bounded, nothing left running."""

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from pk_runtime.execution import Command, Completed, ExecutionError, Limits, LocalExecutor

MIB = 1 << 20


def run(
    folder: Path,
    *argv: str,
    env: Mapping[str, str] | None = None,
    limits: Limits | None = None,
) -> Completed:
    limits = limits or Limits(wall_s=30, memory_bytes=1 << 30)
    command = Command(argv, folder, (), {"PATH": "/usr/bin:/bin"} | dict(env or {}), limits)
    return LocalExecutor().run(command)


def python(folder: Path, code: str, limits: Limits | None = None) -> Completed:
    return run(folder, sys.executable, "-c", code, limits=limits)


def ends(pid: int) -> bool:
    """Whether a process that was killed is gone, or waits for its parent, within ten seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def test_output_exit_code_and_folder(tmp_path: Path) -> None:
    done = run(tmp_path, "sh", "-c", "pwd; echo oops >&2; exit 3")
    assert (done.exit_code, done.signal, done.exceeded, done.ok) == (3, None, None, False)
    assert done.stdout.decode().strip() == str(tmp_path.resolve())
    assert done.stderr == b"oops\n"
    assert run(tmp_path, "true").ok


def test_arguments_are_not_read_by_a_shell(tmp_path: Path) -> None:
    done = run(tmp_path, "printf", "%s|", "a b", "$HOME", "", "'\"; echo x")
    assert done.stdout == b"a b|$HOME||'\"; echo x|"


def test_the_environment_is_only_what_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "value")
    names = run(tmp_path, "env", env={"GIVEN": "1"}).stdout.decode()
    assert "GIVEN=1" in names
    assert "SECRET" not in names


def test_standard_input_is_empty(tmp_path: Path) -> None:
    assert run(tmp_path, "cat").stdout == b""


def test_a_signal_is_told(tmp_path: Path) -> None:
    done = run(tmp_path, "sh", "-c", "kill -SEGV $$")
    assert (done.exit_code, done.signal, done.exceeded) == (None, signal.SIGSEGV, None)


def test_a_missing_program_and_a_missing_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match="no program 'no-such-program'"):
        run(tmp_path, "no-such-program")
    with pytest.raises(ExecutionError, match="cannot start 'true'"):
        run(tmp_path / "absent", "true")


def test_the_wall_limit_stops_a_program_and_its_children(tmp_path: Path) -> None:
    script = "sleep 600 & echo $!; trap '' TERM; sleep 600"
    done = run(tmp_path, "sh", "-c", script, limits=Limits(wall_s=0.5, memory_bytes=1 << 30))
    assert (done.exceeded, done.signal) == ("wall", signal.SIGKILL)
    assert ends(int(done.stdout))


def test_children_do_not_survive_a_program_that_ends(tmp_path: Path) -> None:
    done = run(tmp_path, "sh", "-c", "sleep 600 & echo $!")
    assert done.ok
    assert done.wall_s < 30
    assert ends(int(done.stdout))


def test_the_memory_limit_stops_a_program(tmp_path: Path) -> None:
    code = "import time; block = bytearray(300 << 20); time.sleep(600)"
    done = python(tmp_path, code, Limits(wall_s=60, memory_bytes=150 * MIB))
    assert done.exceeded == "memory"


def test_the_memory_of_children_counts(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys\n"
        "block = 'import time; block = bytearray(120 << 20); time.sleep(600)'\n"
        "children = [subprocess.Popen([sys.executable, '-c', block]) for _ in range(3)]\n"
        "[child.wait() for child in children]\n"
    )
    assert python(tmp_path, code, Limits(60, 250 * MIB)).exceeded == "memory"


def test_the_output_limit_stops_a_program(tmp_path: Path) -> None:
    limits = Limits(wall_s=60, memory_bytes=1 << 30, output_bytes=1000)
    done = run(tmp_path, "yes", limits=limits)
    assert (done.exceeded, len(done.stdout) + len(done.stderr)) == ("output", 1000)
    short = run(tmp_path, "sh", "-c", "printf %01000d 0", limits=limits)
    assert (short.exceeded, len(short.stdout)) == (None, 1000)


def test_the_file_limit_stops_a_program(tmp_path: Path) -> None:
    limits = Limits(wall_s=60, memory_bytes=1 << 30, file_bytes=MIB)
    done = run(tmp_path, "sh", "-c", "head -c 4194304 /dev/zero > big", limits=limits)
    assert not done.ok
    assert os.path.getsize(tmp_path / "big") <= MIB


def test_no_core_file_is_left(tmp_path: Path) -> None:
    run(tmp_path, "sh", "-c", "kill -ABRT $$")
    assert list(tmp_path.iterdir()) == []


def test_closing_the_pipes_does_not_hide_a_program(tmp_path: Path) -> None:
    started = time.monotonic()
    limits = Limits(wall_s=0.5, memory_bytes=1 << 30)
    done = run(tmp_path, "sh", "-c", "exec >&- 2>&-; sleep 600", limits=limits)
    assert done.exceeded == "wall"
    assert time.monotonic() - started < 60
