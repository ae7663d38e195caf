"""What every executor must do, as one list. Each thing denied stands beside one that is allowed.

`BEHAVIOURS` is the whole list, made by the modules beside this one: `conformance_commands` needs no
isolation, `conformance_isolation` and `conformance_judges` do. A case gets an executor and an empty
folder, and asserts; programs are Python, run by this interpreter.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pk_runtime.execution import Command, Completed, Executor, Limits
from sandbox.isolation.interpreter import interpreter_paths

Case = Callable[[Executor, Path], None]

MIB = 1 << 20


@dataclass(frozen=True)
class Behaviour:
    """One entry of the list; `isolated` where only an executor that isolates can pass."""

    case: Case
    isolated: bool

    @property
    def name(self) -> str:
        """What the executor does, in words."""
        return self.case.__name__.replace("_", " ")


BEHAVIOURS: list[Behaviour] = []


def every(case: Case) -> Case:
    """Registers a case for every executor."""
    BEHAVIOURS.append(Behaviour(case, isolated=False))
    return case


def isolated(case: Case) -> Case:
    """Registers a case for executors that isolate."""
    BEHAVIOURS.append(Behaviour(case, isolated=True))
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
    cpu_s: float | None = None,
) -> Completed:
    """Runs Python source in `folder`."""
    return executor.run(
        Command(
            argv=(sys.executable, "-I", "-S", "-c", source, *arguments),
            workdir=folder,
            read_only=(*interpreter_paths(), *read_only),
            env=env or {},
            limits=Limits(wall_s, memory, processes, output, file, cpu_s),
        )
    )


_TRY_ALL = """
import json, os, resource, socket, sys, time
outcome = {}
for name, action in json.loads(sys.argv[1]).items():
    try: exec(action); outcome[name] = "allowed"
    except OSError: outcome[name] = "denied"
json.dump(outcome, sys.stdout)
"""


def refused(
    executor: Executor, folder: Path, actions: Mapping[str, str], read_only: tuple[Path, ...] = ()
) -> set[str]:
    """The names of those actions (Python statements) that are refused, tried by one program."""
    done = run(executor, folder, _TRY_ALL, json.dumps(dict(actions)), read_only=read_only)
    assert done.ok, (done, actions)
    outcome = json.loads(done.stdout)
    assert outcome.keys() == actions.keys()
    return {name for name, what in outcome.items() if what == "denied"}


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


def left_groups(pid: int) -> list[Path]:
    """Control groups that a process made and that still exist."""
    return list(Path("/sys/fs/cgroup").rglob(f"pkforge-{pid}-*"))


def gone(marker: str, within_s: float = 5.0) -> bool:
    """Whether all processes with the marker end; a killed one may take a moment to disappear."""
    deadline = time.monotonic() + within_s
    while alive(marker):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# A program that leaves a deaf child: `detach` is what the child does first, `parent` its parent.
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
