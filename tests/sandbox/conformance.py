"""What every executor must do, as one list. Each thing denied stands beside one that is allowed.

`CASES` are for every executor, `ISOLATED` (in `conformance_isolation`) only for those that isolate.
A case gets an executor and an empty folder, and asserts; programs are Python, run by this
interpreter.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pk_runtime.execution import Command, Completed, ExecutionError, Executor, Limits
from sandbox.isolation.interpreter import interpreter_paths

Case = Callable[[Executor, Path], None]

CASES: list[Case] = []
MIB = 1 << 20


def every(case: Case) -> Case:
    """Registers a case for every executor."""
    CASES.append(case)
    return case


def run(
    executor: Executor,
    folder: Path,
    source: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    read_only: tuple[Path, ...] = (),
    wall_s: float = 30,
    memory: int = 512 * MIB,
    processes: int = 32,
    output: int = MIB,
    file: int = 64 * MIB,
) -> Completed:
    """Runs Python source in `folder`."""
    return executor.run(
        Command(
            argv=(sys.executable, "-I", "-S", "-c", source, *arguments),
            workdir=folder,
            read_only=(*interpreter_paths(), *read_only),
            env=env or {},
            limits=Limits(wall_s, memory, processes, output, file),
        )
    )


def alive(marker: str) -> list[int]:
    """Processes whose command line holds `marker`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in text:
                found.append(int(entry.name))
    return found


def gone(marker: str, within_s: float = 5.0) -> bool:
    """Whether all processes with the marker end; a killed one may take a moment to disappear."""
    deadline = time.monotonic() + within_s
    while alive(marker):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# --- results ----------------------------------------------------------------------------------


@every
def exit_codes(executor: Executor, folder: Path) -> None:
    for code in (0, 1, 3, 127):
        done = run(executor, folder, f"raise SystemExit({code})")
        assert (done.exit_code, done.signal, done.exceeded) == (code, None, None)
        assert done.ok is (code == 0)


@every
def signals(executor: Executor, folder: Path) -> None:
    for number in (6, 9, 11, 15):
        done = run(executor, folder, f"import os; os.kill(os.getpid(), {number})")
        assert (done.exit_code, done.signal, done.exceeded) == (None, number, None)


@every
def output_of_both_streams(executor: Executor, folder: Path) -> None:
    source = "import os; os.write(1, b'out\\xff'); os.write(2, b'err\\0')"
    done = run(executor, folder, source)
    assert (done.stdout, done.stderr) == (b"out\xff", b"err\0")


@every
def output_up_to_the_limit(executor: Executor, folder: Path) -> None:
    source = "import sys; sys.stdout.write('x' * int(sys.argv[1]))"
    fits = run(executor, folder, source, str(MIB - 1), output=MIB)
    assert fits.ok
    assert len(fits.stdout) == MIB - 1
    flood = run(executor, folder, "while True: print('y' * 65536)", output=MIB)
    assert flood.exceeded == "output"
    assert len(flood.stdout) + len(flood.stderr) <= MIB


@every
def both_streams_share_the_limit(executor: Executor, folder: Path) -> None:
    source = "import os\nwhile True: os.write(1, b'o' * 4096); os.write(2, b'e' * 4096)"
    flood = run(executor, folder, source, output=MIB)
    assert flood.exceeded == "output"
    assert len(flood.stdout) + len(flood.stderr) <= MIB


@every
def one_line_without_end(executor: Executor, folder: Path) -> None:
    flood = run(executor, folder, "import os\nwhile True: os.write(2, b'e' * 65536)", output=MIB)
    assert flood.exceeded == "output"


@every
def standard_input_is_empty(executor: Executor, folder: Path) -> None:
    done = run(executor, folder, "import sys; print(repr(sys.stdin.buffer.read()))")
    assert done.stdout == b"b''\n"


@every
def wall_time(executor: Executor, folder: Path) -> None:
    assert run(executor, folder, "import time; time.sleep(0.05)", wall_s=20).ok
    late = run(executor, folder, "import time; time.sleep(600)", wall_s=0.5)
    assert late.exceeded == "wall"
    assert 0.4 < late.wall_s < 20


@every
def busy_loops_end_at_the_wall(executor: Executor, folder: Path) -> None:
    assert run(executor, folder, "while True: pass", wall_s=0.5).exceeded == "wall"


@every
def what_was_printed_before_the_wall_is_kept(executor: Executor, folder: Path) -> None:
    source = "import time; print('early', flush=True); time.sleep(600)"
    assert run(executor, folder, source, wall_s=2).stdout == b"early\n"


@every
def memory(executor: Executor, folder: Path) -> None:
    source = "import sys, time; x = b'x' * int(sys.argv[1]); time.sleep(0.2)"
    assert run(executor, folder, source, str(32 * MIB), memory=256 * MIB).ok
    assert not run(executor, folder, source, str(1024 * MIB), memory=256 * MIB).ok


@every
def file_size(executor: Executor, folder: Path) -> None:
    source = """
import signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with open("big", "wb", buffering=0) as file:
    while True:
        if not file.write(b"x" * 65536) == 65536: raise OSError
        if file.tell() >= int(sys.argv[1]): break
"""
    assert run(executor, folder, source, str(MIB), file=8 * MIB).ok
    assert (folder / "big").stat().st_size == MIB
    assert not run(executor, folder, source, str(64 * MIB), file=8 * MIB).ok
    assert (folder / "big").stat().st_size <= 8 * MIB


# --- what a command gets ------------------------------------------------------------------------


@every
def the_environment_is_the_commands_own(executor: Executor, folder: Path) -> None:
    done = run(executor, folder, "import os; print(os.environ['GIVEN'])", env={"GIVEN": "1 =2"})
    assert done.stdout == b"1 =2\n"
    assert run(executor, folder, "import os; os.environ['GIVEN']").exit_code == 1


@every
def the_working_folder(executor: Executor, folder: Path) -> None:
    (folder / "given").write_text("in")
    source = "import os; print(os.getcwd(), open('given').read()); open('made', 'w').write('out')"
    done = run(executor, folder, source)
    assert done.stdout.decode() == f"{folder} in\n"
    assert (folder / "made").read_text() == "out"


@every
def folders_inside_the_working_folder(executor: Executor, folder: Path) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "given").write_text("in")
    source = "import os; os.makedirs('c/d'); open('c/d/e', 'w').write(open('a/b/given').read())"
    assert run(executor, folder, source).ok
    assert (folder / "c" / "d" / "e").read_text() == "in"
    assert (folder / "a" / "b" / "given").read_text() == "in"


@every
def changed_and_deleted_files(executor: Executor, folder: Path) -> None:
    for name in ("kept", "changed", "deleted"):
        (folder / name).write_text("before")
    source = "import os; open('changed', 'w').write('after'); os.remove('deleted')"
    assert run(executor, folder, source).ok
    assert (folder / "kept").read_text() == "before"
    assert (folder / "changed").read_text() == "after"
    assert not (folder / "deleted").exists()


@every
def odd_file_names(executor: Executor, folder: Path) -> None:
    names = ["a b", "-rf", "tab\there", "new\nline", "ümlaut", os.fsdecode(b"\xff\xfe"), "x" * 255]
    for name in names:
        (folder / name).write_text("in")
    source = "import os\nfor n in os.listdir(b'.'): open(n, 'ab').write(b'+')"
    assert run(executor, folder, source).ok
    assert {path.name for path in folder.iterdir()} == set(names)
    assert all(path.read_text() == "in+" for path in folder.iterdir())


@every
def programs_made_in_the_working_folder_run(executor: Executor, folder: Path) -> None:
    source = """
import os, subprocess
open("tool", "w").write("#!/bin/sh\\necho ran\\n"); os.chmod("tool", 0o755)
subprocess.run(["./tool"], check=True)
"""
    assert run(executor, folder, source).stdout == b"ran\n"
    assert os.access(folder / "tool", os.X_OK)


@every
def read_only_paths(executor: Executor, folder: Path) -> None:
    work, given = folder / "work", folder / "given"
    work.mkdir()
    given.mkdir()
    (given / "file").write_text("in")
    source = "import sys; print(open(sys.argv[1]).read())"
    done = run(executor, work, source, str(given / "file"), read_only=(given,))
    assert done.stdout == b"in\n"
    one = run(executor, work, source, str(given / "file"), read_only=(given / "file",))
    assert one.stdout == b"in\n"


@every
def arguments_arrive_as_they_are(executor: Executor, folder: Path) -> None:
    given = ("--version", "a b", "$HOME", "'", "*", "", "--")
    done = run(executor, folder, "import sys; print(sys.argv[1:])", *given)
    assert done.stdout.decode().strip() == str(list(given))


@every
def a_program_that_is_not_there(executor: Executor, folder: Path) -> None:
    limits = Limits(10, 256 * MIB)
    with pytest.raises(ExecutionError, match="no-such-program"):
        executor.run(Command(("/usr/bin/no-such-program",), folder, (), {}, limits))


# --- what is left over --------------------------------------------------------------------------

SURVIVOR = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if os.fork() == 0:
    {detach}
    print("born", flush=True)
    time.sleep(600)
{parent}
"""


@every
def children_die_with_a_command_that_ends(executor: Executor, folder: Path) -> None:
    marker = f"marker-{folder.name}-ends"
    source = SURVIVOR.format(detach="pass", parent="time.sleep(0.3)")
    done = run(executor, folder, source, marker)
    assert done.exit_code == 0
    assert done.stdout == b"born\n"
    assert gone(marker)


@every
def children_die_with_a_command_that_is_late(executor: Executor, folder: Path) -> None:
    marker = f"marker-{folder.name}-late"
    source = SURVIVOR.format(detach="pass", parent="time.sleep(600)")
    done = run(executor, folder, source, marker, wall_s=1)
    assert (done.exceeded, done.stdout) == ("wall", b"born\n")
    assert gone(marker)
