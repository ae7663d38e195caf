"""A small judge whose verdict a candidate's text dictates, and jobs that use it.

The text of a candidate holds words: `us=400` is its simulated time, `status=deadlock` its verdict,
`gate` runs a program first for as long as the gate is shut, `die` kills the worker's process,
`stubborn` ignores every request to stop.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from agent.loop import Policy
from agent.policies import create_policy
from agent.spec import Budget, JobSpec
from pk_runtime.candidate import Candidate
from pk_runtime.execution import Command, Limits, LocalExecutor
from sandbox.verdict import Status, Timing, Verdict
from store import Settings, Store
from store.models import Job
from workers.parts import Parts, Progress, Question

PROBLEM, TARGET = "gemm_reducescatter", "sim:h200x4"
BASELINE_US = 1000.0
# As in a sandbox, it dies with whoever started it.
WAIT_AT_THE_GATE = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("sh", "-c", "while [ -e gate ]; do sleep 0.1; done"),
)


def kernel(text: str) -> Candidate:
    """A candidate whose text is these words."""
    return Candidate("pk", {"kernel.cu": f"// {text}\n"})


def verdict(candidate: Candidate, depth: str = "quick") -> Verdict:
    """The verdict that the candidate's text dictates."""
    words = dict(re.findall(r"(\w+)=(\w+)", candidate.source))
    status = cast(Status, words.get("status", "correct"))
    candidate_us = float(words.get("us", "500"))
    timing = Timing(
        shape="default",
        kind="simulated",
        candidate_us=candidate_us,
        baseline_us=BASELINE_US,
        speedup=BASELINE_US / candidate_us,
        roofline_us=100.0,
        roofline_fraction=100.0 / candidate_us,
        bottleneck="nvlink",
    )
    return Verdict(
        status=status,
        stage="done" if status == "correct" else "check",
        problem=PROBLEM,
        target=TARGET,
        language="pk",
        candidate=candidate.digest(),
        depth="full" if depth == "full" else "quick",
        seed=1,
        evidence={"summary": f"It is {status}."},
        timings=(timing,) if status == "correct" else (),
    )


class ExampleParts:
    """`workers.parts.Parts` with that judge; every judgement is noted in a file of `home`."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def policy(self, spec: JobSpec) -> Policy:
        """The scripted policy."""
        return create_policy(spec)

    def judge(self, question: Question, progress: Progress) -> Verdict:
        """Do what the candidate's text says."""
        text = question.candidate.source.removeprefix("// ").strip()
        with judgements_file(self._home).open("a") as file:
            file.write(f"{question.depth} {text}\n")
        progress("build", {})
        if re.search(r"\bgate\b", text):
            run_program(self._home, WAIT_AT_THE_GATE)
        if re.search(r"\bdie\b", text):
            os.kill(os.getpid(), signal.SIGKILL)
        while re.search(r"\bstubborn\b", text):
            with suppress(BaseException):
                run_program(self._home, WAIT_AT_THE_GATE)
        progress("check", {"shape": "tiny"})
        return verdict(question.candidate, question.depth)

    def interface(self) -> Mapping[str, Any] | None:
        """No formulas."""
        return None


def run_program(home: Path, argv: tuple[str, ...]) -> None:
    """Run a program as the judge runs candidates."""
    limits = Limits(wall_s=600.0, memory_bytes=1 << 30)
    LocalExecutor().run(Command(argv, home, (), {"PATH": os.defpath}, limits))


def shut_gate(settings: Settings) -> None:
    """Let the judgements of candidates with `gate` last until `open_gate`."""
    (settings.home / "gate").touch()


def open_gate(settings: Settings) -> None:
    """Let them end."""
    (settings.home / "gate").unlink()


def judgements_file(home: Path) -> Path:
    """Where judgements are noted."""
    return home / "judgements"


def judgements(settings: Settings) -> list[str]:
    """Every judgement begun so far, by any process: depth and text."""
    path = judgements_file(settings.home)
    return path.read_text().splitlines() if path.exists() else []


@contextmanager
def example_parts(settings: Settings, store: Store, job: Job) -> Iterator[Parts]:
    """`workers.parts.OpenParts` of that judge."""
    yield ExampleParts(settings.home)


def spec(*texts: str, **changes: Any) -> JobSpec:
    """A job that tries these candidates in order."""
    return JobSpec(
        problem=PROBLEM,
        target=TARGET,
        policy="scripted",
        scripted=tuple(kernel(text) for text in texts),
        budget=changes.pop("budget", Budget(usd=1.0)),
        **changes,
    )


def submit(store: Store, *texts: str, **changes: Any) -> str:
    """Queue such a job and return its id."""
    with store.database.write() as tx:
        return tx.jobs.create("optimization", spec(*texts, **changes).to_json()).id


def job(store: Store, job_id: str) -> Job:
    """A job as it is stored now."""
    with store.database.read() as tx:
        return tx.jobs.get(job_id)


def attempts(store: Store, job_id: str) -> list[tuple[int, str, str | None]]:
    """Number, phase and status of a job's attempts."""
    with store.database.read() as tx:
        return [(row.number, row.phase, row.status) for row in tx.attempts.list(job_id)]


def events(store: Store, job_id: str) -> list[tuple[str, dict[str, Any]]]:
    """A job's events in order; fails if their numbers have gaps."""
    with store.database.read() as tx:
        rows = tx.events.after(job_id, limit=10_000)
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    return [(row.type, row.payload) for row in rows]


def event_types(store: Store, job_id: str) -> list[str]:
    """The types of a job's events, in order."""
    return [type for type, _ in events(store, job_id)]


def wait_for(what: str, condition: Any, timeout_s: float = 60.0) -> None:
    """Return once `condition()` holds; AssertionError that names `what` when it takes too long."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)


def processes_of(pids: Sequence[int]) -> list[int]:
    """Which of these processes are still alive (zombies are not)."""
    alive = []
    for pid in pids:
        with suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                alive.append(pid)
    return alive
