"""Behaviours of executors that isolate: what can be seen, written and used up."""

import os
import sys
from pathlib import Path

from pk_runtime.execution import Executor
from tests.sandbox.conformance import MIB, isolated, refused, run


@isolated
def writing_outside(executor: Executor, folder: Path) -> None:
    inside = ("here", "/tmp/here", "/dev/shm/here", str(folder / "there"))
    outside = ("/here", "/usr/here", "/etc/here", "/dev/here", "/proc/here", "/sys/here")
    actions = {path: f"open({path!r}, 'w')" for path in (*inside, *outside)}
    assert refused(executor, folder, actions) == set(outside)


@isolated
def read_only_paths_cannot_be_written(executor: Executor, folder: Path) -> None:
    work, given = folder / "work", folder / "given"
    work.mkdir()
    given.mkdir(mode=0o777)
    given.chmod(0o777)
    (given / "file").write_text("in")
    (given / "file").chmod(0o666)
    paths = {"file": given / "file", "new": given / "new", "own": work / "new"}
    actions = {name: f"open({str(path)!r}, 'a')" for name, path in paths.items()}
    actions["remove"] = f"os.unlink({str(given / 'file')!r})"
    assert refused(executor, work, actions, (given,)) == {"file", "new", "remove"}
    assert (given / "file").read_text() == "in"


@isolated
def a_read_only_path_may_be_a_link_below_a_system_folder(executor: Executor, folder: Path) -> None:
    """As /usr/local/cuda is: a link to a folder that the sandbox shows already."""
    links = (
        path for top in ("/usr/local", "/usr/lib", "/usr/share") for path in Path(top).iterdir()
    )
    link = next(path for path in links if path.is_symlink() and path.is_dir())
    listed = f"import os; print(len(os.listdir({str(link)!r})))"
    done = run(executor, folder, listed, read_only=(link,))
    assert done.stdout == f"{len(os.listdir(link))}\n".encode(), done.stderr


@isolated
def the_rest_of_the_machine_is_not_there(executor: Executor, folder: Path) -> None:
    work, secret = folder / "work", folder / "secret"
    work.mkdir()
    secret.write_text("key")
    secret.chmod(0o644)
    elsewhere = ("/root", "/home", "/var", "/run", "/sys")
    # The way to the interpreter is there when it lies below one of them, and nothing beside it.
    closed = [path for path in elsewhere if not sys.prefix.startswith(f"{path}/")]
    actions = {
        path: f"if not os.listdir({path!r}): raise OSError" for path in (*closed, "/usr/bin")
    }
    files = (str(secret), "/etc/passwd", "/etc/shadow", "/proc/kcore", "/proc/kmsg")
    actions |= {
        path: f"if not open({path!r}, 'rb').read(1): raise OSError"
        for path in (*files, "/usr/bin/env")
    }
    assert refused(executor, work, actions) == {*closed, *files}


@isolated
def folders_that_only_the_owner_may_enter(executor: Executor, folder: Path) -> None:
    home = folder / "home"
    work, given = home / "work", home / "given"
    work.mkdir(parents=True)
    given.mkdir()
    (given / "file").write_text("in")
    (given / "file").chmod(0o600)
    for private in (given, work, home):
        private.chmod(0o700)
    source = f"print(open({str(given / 'file')!r}).read()); open('out', 'w')"
    assert run(executor, work, source, read_only=(given,)).stdout == b"in\n"
    assert (work / "out").exists()


@isolated
def links_do_not_come_back(executor: Executor, folder: Path) -> None:
    source = """
import os
os.symlink("/etc/passwd", "link"); os.symlink("/etc", "folder"); os.mkfifo("pipe")
open("real", "w").write("x"); os.link("real", "twice")
os.symlink("../../../escape", "up"); os.mkdir("sub"); os.symlink("/", "sub/root")
os.remove("given"); os.symlink("/etc/hostname", "given")
open("plain", "w").write("y")
"""
    (folder / "given").write_text("in")
    assert run(executor, folder, source).ok
    left = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert left == {"plain", "sub"}
    assert (folder / "plain").read_text() == "y"


@isolated
def special_modes_do_not_come_back(executor: Executor, folder: Path) -> None:
    source = "import os; open('s', 'w'); os.chmod('s', 0o6777); os.mkdir('d'); os.chmod('d', 0)"
    assert run(executor, folder, source).ok
    assert (folder / "s").stat().st_mode & 0o7022 == 0
    assert os.listdir(folder / "d") == []


@isolated
def what_is_closed_comes_back_open(executor: Executor, folder: Path) -> None:
    source = """
import os
os.makedirs("in/ner"); open("in/ner/file", "w").write("x"); open("secret", "w").write("y")
for path in ("secret", "in/ner/file", "in/ner", "in", "."): os.chmod(path, 0)
"""
    assert run(executor, folder, source).ok
    assert (folder / "in" / "ner" / "file").read_text() == "x"
    assert (folder / "secret").read_text() == "y"


@isolated
def total_disk(executor: Executor, folder: Path) -> None:
    fill = """
import os, sys
written = 0
try:
    for place in sys.argv[1:]:
        try:
            for i in range(40):
                with open(os.path.join(place, str(i)), "wb", buffering=0) as file:
                    written += file.write(b"x" * (1 << 20))
        except OSError: pass
finally: print(written >> 20)
"""
    assert run(executor, folder, fill, ".", file=64 * MIB).stdout == b"40\n"
    for path in folder.iterdir():
        path.unlink()
    for where in (".", "/tmp", "/dev/shm"):
        assert int(run(executor, folder, fill, where, file=16 * MIB).stdout) < 18
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 17 * MIB
    for path in folder.iterdir():
        path.unlink()
    everywhere = run(executor, folder, fill, ".", "/tmp", "/dev/shm", file=16 * MIB)
    assert int(everywhere.stdout) <= 25


@isolated
def sparse_files_do_not_fill_the_host(executor: Executor, folder: Path) -> None:
    source = "for i in range(100): open(str(i), 'wb').truncate(8 << 20)"
    assert run(executor, folder, source, file=16 * MIB).ok
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 17 * MIB


@isolated
def the_number_of_files(executor: Executor, folder: Path) -> None:
    source = "import sys\nfor i in range(int(sys.argv[1])): open(f'/tmp/{i}', 'w').close()"
    assert run(executor, folder, source, "1000").ok
    assert not run(executor, folder, source, "200000").ok


@isolated
def processes(executor: Executor, folder: Path) -> None:
    source = """
import os, sys, time
born = 0
try:
    while born < int(sys.argv[1]):
        if os.fork() == 0: time.sleep(600)
        born += 1
except OSError: pass
print(born)
"""
    assert run(executor, folder, source, "4").stdout == b"4\n"
    assert int(run(executor, folder, source, "500", processes=24).stdout) < 24


@isolated
def threads(executor: Executor, folder: Path) -> None:
    source = """
import threading, time
born = 0
try:
    while born < 200:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start(); born += 1
except RuntimeError: pass
print(born, flush=True)
import os; os._exit(0)
"""
    assert 2 < int(run(executor, folder, source, processes=24).stdout) < 24


@isolated
def memory_is_reported(executor: Executor, folder: Path) -> None:
    source = "x = b'x' * (1 << 30)"
    done = run(executor, folder, source, memory=128 * MIB)
    assert done.exceeded == "memory" or b"MemoryError" in done.stderr


@isolated
def memory_in_files_is_limited(executor: Executor, folder: Path) -> None:
    source = "import os, sys; os.write(os.memfd_create('m'), b'x' * int(sys.argv[1])); print('ok')"
    assert run(executor, folder, source, str(8 * MIB)).stdout == b"ok\n"
    assert not run(executor, folder, source, str(512 * MIB), memory=128 * MIB, file=256 * MIB).ok
