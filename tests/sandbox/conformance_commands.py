"""The part of the conformance list that every executor can pass, with isolation or without."""

import os
from pathlib import Path

import pytest

from pk_runtime.execution import Command, ExecutionError, Executor, Limits
from tests.sandbox.conformance import MIB, SURVIVOR, every, gone, run

# --- results ----------------------------------------------------------------------------------


@every
def exit_codes(executor: Executor, folder: Path) -> None:
    for code in (0, 3, 127):
        done = run(executor, folder, f"raise SystemExit({code})")
        assert (done.exit_code, done.signal, done.exceeded) == (code, None, None)
        assert done.ok is (code == 0)


@every
def signals(executor: Executor, folder: Path) -> None:
    for number in (6, 9, 15):
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
def memory_of_all_processes_together(executor: Executor, folder: Path) -> None:
    source = """
import os, sys, time
for i in range(4):
    if os.fork() == 0:
        x = b'x' * int(sys.argv[1]); time.sleep(60)
time.sleep(0.5)
if sys.argv[2] == "hogs": sys.exit(os.wait()[1] != 0)
"""
    assert run(executor, folder, source, str(16 * MIB), "fits", memory=256 * MIB).ok
    hogs = run(executor, folder, source, str(128 * MIB), "hogs", memory=256 * MIB)
    assert hogs.exceeded == "memory" or b"MemoryError" in hogs.stderr


@every
def cpu_time(executor: Executor, folder: Path) -> None:
    assert run(executor, folder, "sum(range(10**5))", cpu_s=5).ok
    busy = run(executor, folder, "while True: pass", cpu_s=1, wall_s=120)
    assert (busy.exit_code, busy.signal, busy.exceeded) == (None, 24, None)


@every
def a_file_that_grows_too_large_ends_its_writer(executor: Executor, folder: Path) -> None:
    source = """
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
with open("big", "wb", buffering=0) as file:
    while True: file.write(b"x" * 65536)
"""
    assert run(executor, folder, source, file=4 * MIB).signal == 25


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
    done = run(executor, folder, "import os; print(os.environ['GIVEN'])", env={"GIVEN": "1 =2\n3"})
    assert done.stdout == b"1 =2\n3\n"
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
def files_and_folders_that_change_places(executor: Executor, folder: Path) -> None:
    (folder / "file").write_text("before")
    (folder / "folder" / "inner").mkdir(parents=True)
    (folder / "folder" / "inner" / "deep").write_text("before")
    source = """
import os, shutil
shutil.rmtree("folder"); open("folder", "w").write("now a file")
os.remove("file"); os.makedirs("file/inner"); open("file/inner/deep", "w").write("now deep")
"""
    assert run(executor, folder, source).ok
    assert (folder / "folder").read_text() == "now a file"
    assert (folder / "file" / "inner" / "deep").read_text() == "now deep"


@every
def a_working_folder_that_is_emptied(executor: Executor, folder: Path) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "c").write_text("before")
    assert run(executor, folder, "import shutil; shutil.rmtree('a')").ok
    assert list(folder.iterdir()) == []


@every
def many_results(executor: Executor, folder: Path) -> None:
    source = "for i in range(500): open(f'{i}', 'w').write(str(i) * 100)"
    assert run(executor, folder, source).ok
    assert {p.name: p.read_text() for p in folder.iterdir()} == {
        str(i): str(i) * 100 for i in range(500)
    }


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
    given = ("--version", "a b", "$HOME", "'", "*", "", "--", "ü\n", os.fsdecode(b"\xff"))
    done = run(executor, folder, "import sys; print(ascii(sys.argv[1:]))", *given)
    assert done.stdout.decode().strip() == ascii(list(given))


@every
def a_program_that_is_not_there(executor: Executor, folder: Path) -> None:
    limits = Limits(10, 256 * MIB)
    with pytest.raises(ExecutionError, match="no-such-program"):
        executor.run(Command(("/usr/bin/no-such-program",), folder, (), {}, limits))


@every
def streams_may_be_closed(executor: Executor, folder: Path) -> None:
    source = """
import os, time
print("first", flush=True)
for stream in (0, 1, 2): os.close(stream)
time.sleep(0.3); open("after", "w").write("x")
"""
    done = run(executor, folder, source)
    assert (done.exit_code, done.stdout) == (0, b"first\n")
    assert (folder / "after").exists()


@every
def orphans_are_buried(executor: Executor, folder: Path) -> None:
    source = """
import os
for i in range(60):
    if os.fork() == 0:
        if os.fork() == 0: os._exit(0)
        os._exit(0)
    os.wait()
print("done")
"""
    assert run(executor, folder, source).stdout == b"done\n"


@every
def a_command_may_kill_its_own_group(executor: Executor, folder: Path) -> None:
    done = run(executor, folder, "import os; os.killpg(0, 9)")
    assert (done.exit_code, done.signal, done.exceeded) == (None, 9, None)


# --- what is left over --------------------------------------------------------------------------


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
