"""Behaviours of executors that isolate: several runs, several judges, and a judge's sudden end."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pk_runtime.execution import Executor
from sandbox.isolation import DockerExecutor, cgroup
from tests.docker_engine import call
from tests.sandbox.conformance import SURVIVOR, alive, gone, isolated, left_groups, run

ROOT = Path(__file__).resolve().parent.parent.parent
START_S = 60.0


@isolated
def parallel_runs(executor: Executor, folder: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    source = """
import os, sys, time
open("/tmp/mine", "x").write(sys.argv[1]); open("out", "w").write(sys.argv[1])
child = os.fork()
time.sleep(0.2)
print(open("/tmp/mine").read(), len(os.listdir("/dev/shm")), flush=True)
if child: os.waitpid(child, 0)
"""

    def one(number: int) -> str:
        work = folder / str(number)
        work.mkdir()
        done = run(executor, work, source, str(number))
        assert (work / "out").read_text() == str(number)
        return done.stdout.decode()

    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(one, range(8)))
    assert outputs == [f"{number} 0\n{number} 0\n" for number in range(8)]
    assert set(os.listdir("/proc/self/fd")) == before
    assert left_behind(executor, os.getpid()) == []


@isolated
def nothing_is_left_after_a_run(executor: Executor, folder: Path) -> None:
    private = folder / "private"
    private.mkdir(mode=0o700)
    (private / "file").write_text("in")
    work = folder / "work"
    work.mkdir()
    mounts = Path("/proc/self/mountinfo").read_text()
    temporary = set(Path(os.environ.get("TMPDIR", "/tmp")).glob("pkforge-lent-*"))
    source = f"open('/tmp/x', 'w'); open('/dev/shm/x', 'w'); open({str(private / 'file')!r})"
    assert run(executor, work, source, read_only=(private,)).ok
    assert not run(executor, work, "raise SystemExit(1)", read_only=(private,)).ok
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert set(Path(os.environ.get("TMPDIR", "/tmp")).glob("pkforge-lent-*")) == temporary
    assert left_behind(executor, os.getpid()) == []
    assert list(work.iterdir()) == []


@isolated
def nothing_outlives_a_judge_that_is_killed(executor: Executor, folder: Path) -> None:
    marker = f"marker-{folder.name}"
    detached = SURVIVOR.format(detach="os.setsid()", parent="time.sleep(600)")
    moments = (0.0, 0.3, None) if isinstance(executor, DockerExecutor) else (0.0, 0.02, 0.05, None)
    for moment_s in moments:  # None: when the command runs
        with other_judge(executor, folder, detached, marker) as judge:
            if moment_s is None:
                await_alive(marker)
            else:
                time.sleep(moment_s)
            judge.send_signal(signal.SIGKILL)
            judge.wait(START_S)
        assert gone(marker, 30.0)
        look_again(executor)
        assert left_behind(executor, judge.pid) == []


@isolated
def two_judges_leave_each_other_alone(executor: Executor, folder: Path) -> None:
    marker = f"marker-{folder.name}"
    waits = "import os, time\nopen('/tmp/mine', 'x')\nwhile True: time.sleep(1)"
    first, second = folder / "first", folder / "second"
    first.mkdir()
    second.mkdir()
    with (
        other_judge(executor, first, waits, f"{marker}-1") as one,
        other_judge(executor, second, waits, f"{marker}-2") as two,
    ):
        await_alive(f"{marker}-1")
        await_alive(f"{marker}-2")
        look_again(executor)  # what a third one does at its start
        own = folder / "own"
        own.mkdir()
        assert run(executor, own, "open('/tmp/mine', 'x')").ok
        one.send_signal(signal.SIGKILL)
        one.wait(START_S)
        assert gone(f"{marker}-1", 30.0)
        look_again(executor)
        assert alive(f"{marker}-2")
        two.send_signal(signal.SIGKILL)
        two.wait(START_S)
    assert gone(f"{marker}-2", 30.0)


@contextlib.contextmanager
def other_judge(
    executor: Executor, folder: Path, source: str, marker: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that runs `source`, with `marker` as its argument, on the same back end."""
    maker = f"{type(executor).__name__}()"
    if isinstance(executor, DockerExecutor):
        maker = f"DockerExecutor({executor.engine.host!r})"
    program = f"""
import sys
from pathlib import Path
from sandbox.isolation import *
from tests.sandbox.conformance import run
executor = {maker}
print("ready", flush=True)
run(executor, Path({str(folder)!r}), {source!r}, {marker!r}, wall_s=600)
"""
    judge = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert judge.stdout is not None
        assert judge.stdout.readline() == b"ready\n"
        yield judge
    finally:
        judge.kill()
        judge.communicate(timeout=START_S)


def await_alive(marker: str) -> None:
    """Waits until a command with the marker runs inside a sandbox, beyond its judge."""
    deadline = time.monotonic() + START_S
    while not inside(marker):
        assert time.monotonic() < deadline, "the command did not start"
        time.sleep(0.02)


def inside(marker: str) -> list[int]:
    """Processes with the marker that have left the PID namespace of the tests."""
    own = os.stat("/proc/self/ns/pid").st_ino
    found = []
    for pid in alive(marker):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}/ns/pid").st_ino != own:
                found.append(pid)
    return found


def look_again(executor: Executor) -> None:
    """What every judge does when it starts: removes what dead ones left."""
    cgroup.detect()
    if isinstance(executor, DockerExecutor):
        executor.engine.sweep()


def left_behind(executor: Executor, pid: int) -> list[str]:
    """Control groups and containers of a process that still exist, after a moment."""
    deadline = time.monotonic() + 5
    while True:
        left = [str(path) for path in left_groups(pid)]
        if isinstance(executor, DockerExecutor):
            named = call(executor.engine.host, "ps", "--all", "--format", "{{.Names}}").split()
            left += [name for name in named if name.startswith(f"pkforge-{pid}-")]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)
        cgroup.detect()
