"""Hostile kernels that the static rules are not asked about: the sandbox and the trust split hold.

One shipped kernel with every attack in it, compiled and run by the judge's own stages, without the
scan, on every back end; with the scan, it is rejected before it runs.
"""

import os
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import OBJECT, Compiler
from pk_runtime.execution import Command, Completed
from pk_runtime.kernels import shipped_kernel
from pk_runtime.simulator import Simulator
from pk_runtime.target import parse_target
from problems.hosting import InProcessHost
from problems.registry import get
from sandbox.isolation import BubblewrapExecutor, IsolatedExecutor
from sandbox.judge import Judge
from sandbox.rules.objects import refusals
from sandbox.rules.scan import scan
from sandbox.stages import StageFailed
from sandbox.stages.bench import Bench
from sandbox.stages.check import Check
from sandbox.stages.plan import plan
from tests.sandbox.conformance import gone
from tests.sandbox.hostile.attacks import ATTACKS, COMMON, HEADERS, TIMES, Attack, number, program

TARGET = parse_target("sim:h200x4")
PROBLEM = "alltoall"
KERNEL = shipped_kernel("alltoall").source


class Choosing:
    """An executor that tells the hostile program which attack is meant, and lowers the limits."""

    def __init__(self, executor: IsolatedExecutor, number: int, attack: Attack) -> None:
        self.name = executor.name
        self._executor = executor
        self._number = number
        self._attack = attack

    def run(self, command: Command) -> Completed:
        """Runs a command with the file `attack` in its work folder."""
        file = command.workdir / "attack"
        file.write_text(str(self._number))
        attack = self._attack
        limits = replace(command.limits, wall_s=min(attack.wall_s, command.limits.wall_s),
                         memory_bytes=attack.memory, file_bytes=attack.file)  # fmt: skip
        return self._executor.run(replace(command, limits=limits))


class Rig:
    """The judge's stages without the scan, on one back end."""

    candidate = Candidate("pk", {"kernel.cu": program(KERNEL)})

    def __init__(self, program: Path, workspace: Path, executor: IsolatedExecutor) -> None:
        self.program = program
        self.workspace = workspace
        self.executor = executor
        self.host = InProcessHost(get(PROBLEM))

    def attack(self, name: str) -> str:
        """The status that the check stage gives, with its summary."""
        executor = Choosing(self.executor, number(name), ATTACKS[name])
        return self.check(Simulator(executor, self.workspace))

    def check(self, simulator: Simulator) -> str:
        """The same for a program that needs no telling."""
        check = Check(self.program, simulator, self.host, TARGET.sheet, 5, lambda *_: None)
        return _status(lambda: check.run(plan("quick", ["tiny"], 4)))

    def bench(self, name: str) -> str:
        """The status that the bench stage gives, with its summary."""
        executor = Choosing(self.executor, number(name, timing=True), TIMES[name])
        simulator = Simulator(executor, self.workspace)
        bench = Bench(self.program, self.candidate, simulator, TARGET, lambda *_: None)
        return _status(lambda: bench.run(self.host.describe(4), ["m1024n1024"]))


def _status(run: Callable[[], object]) -> str:
    try:
        run()
    except StageFailed as failed:
        return f"{failed.status}: {failed.evidence['summary']}"
    return "correct"


@pytest.fixture(scope="module")
def compiler(judge: Judge, judge_cache: Path, bubblewrap: BubblewrapExecutor) -> Compiler:
    """Shares the judge's engine; `judge` is asked for so that there is one."""
    return Compiler(judge_cache / "build", bubblewrap)


@pytest.fixture(scope="module")
def hostile(compiler: Compiler) -> Path:
    """The program with every attack in it."""
    assert scan(Rig.candidate)
    program = compiler.simulator(Rig.candidate)
    assert refusals(program.with_name(OBJECT))
    return program


@pytest.fixture
def rig(hostile: Path, judge_cache: Path, isolating: IsolatedExecutor) -> Rig:
    """The hostile program on each back end in turn."""
    return Rig(hostile, judge_cache / "hostile", isolating)


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_the_verdict_of_each_attack(name: str, rig: Rig, judge_cache: Path) -> None:
    assert rig.attack(name).startswith(ATTACKS[name].expected)
    assert gone(str(judge_cache))


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMES)
def test_forged_times(name: str, rig: Rig) -> None:
    """Impossible times do not pass."""
    assert rig.bench(name).startswith(TIMES[name].expected)


def hostile_to(body: str, compiler: Compiler) -> Path:
    """A right kernel that runs `body` before anything else, compiled."""
    source = f"{HEADERS}{COMMON}namespace {{ struct evil {{ evil() {{ {body} }} }} now; }}{KERNEL}"
    # Past the rules about text and objects: here it is the sandbox that must hold.
    return compiler.simulator(Candidate("pk", {"kernel.cu": source}))


@pytest.mark.slow
def test_what_runs_on_this_host_is_out_of_reach(
    compiler: Compiler, judge_cache: Path, isolating: IsolatedExecutor
) -> None:
    """A listener and a process, both of which can be reached from outside the sandbox."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen(["sleep", "600"]) as victim,
    ):
        try:
            port = server.getsockname()[1]
            body = f"""
                sockaddr_in to = address(0x7f000001, {port});
                int s = socket(AF_INET, SOCK_STREAM, 0);
                must_fail(connect(s, reinterpret_cast<sockaddr*>(&to), sizeof to));
                must_fail(kill({victim.pid}, SIGKILL));"""
            rig = Rig(hostile_to(body, compiler), judge_cache / "hostile", isolating)
            assert rig.check(Simulator(isolating, rig.workspace)) == "correct"
            with socket.create_connection(("127.0.0.1", port), 5):
                pass
            assert victim.poll() is None
            os.kill(victim.pid, 0)
        finally:
            victim.kill()
