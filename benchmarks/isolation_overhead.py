"""What a sandboxed run costs over a bare one, by stage: `python -m benchmarks.isolation_overhead`.

One small command (`true`, and a work folder with two files) is run in turn on every back end that
is found, and without any; medians in milliseconds. Stages: `prepare` (control groups, options),
`start` (until the command runs), `command` (the command itself, as its sandbox sees it), `end`
(until its results are back), `clean-up` (control groups or the container are removed).
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pk_runtime.execution import Command, Completed, Limits, LocalExecutor
from sandbox.isolation import (
    BubblewrapExecutor,
    DockerExecutor,
    IsolationUnavailable,
    NamespaceExecutor,
    docker,
)
from sandbox.isolation.conversation import Conversation
from sandbox.isolation.launched import LaunchedExecutor
from sandbox.isolation.watch import Watch

STAGES = ("prepare", "start", "command", "end", "clean-up")
Timed = Callable[[Command], dict[str, float]]


def launched(executor: LaunchedExecutor) -> Timed:
    """Times the stages of a back end that works through the launcher."""

    def run(command: Command) -> dict[str, float]:
        began = time.monotonic()
        group = executor._group(command)
        watch = Watch(command, executor._specification(command, group), group)
        prepared = time.monotonic()
        done = watch.to_end()
        ended = time.monotonic()
        group.remove()
        return _stages(began, prepared, watch.started, done, ended)

    return run


def contained(executor: DockerExecutor) -> Timed:
    """Times the stages of the Docker back end."""

    def run(command: Command) -> dict[str, float]:
        seen: dict[str, float] = {}

        class Timed(Conversation):
            def to_end(self, *arguments: Any) -> Completed:
                seen["prepared"] = time.monotonic()
                done = super().to_end(*arguments)
                seen["started"], seen["ended"] = self.started or 0.0, time.monotonic()
                return done

        began = time.monotonic()
        with patch.object(docker, "Conversation", Timed):
            done = executor.run(command)
        return _stages(began, seen["prepared"], seen["started"], done, seen["ended"])

    return run


def bare(command: Command) -> dict[str, float]:
    """A plain subprocess."""
    began = time.monotonic()
    LocalExecutor().run(command)
    return {"total": time.monotonic() - began}


def _stages(
    began: float, prepared: float, started: float, done: Completed, ended: float
) -> dict[str, float]:
    assert done.ok, done
    now = time.monotonic()
    return {
        "prepare": prepared - began,
        "start": started - prepared,
        "command": done.wall_s,
        "end": max(ended - started - done.wall_s, 0.0),
        "clean-up": now - ended,
        "total": now - began,
    }


def measure(backends: dict[str, Timed], rounds: int) -> dict[str, dict[str, float]]:
    """Median milliseconds of each stage, by back end; the back ends take turns."""
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in backends}
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder)
        for name in ("one", "two"):
            (workdir / name).write_bytes(bytes(4096))
        command = Command(("/usr/bin/true",), workdir, (), {}, Limits(60.0, 1 << 30))
        for _ in range(rounds + 1):
            for name, run in backends.items():
                samples[name].append(run(command))
    return {
        name: {stage: 1e3 * statistics.median(sample[stage] for sample in taken[1:])
               for stage in taken[0]}
        for name, taken in samples.items()
    }  # fmt: skip


def found(docker_host: str) -> dict[str, Timed]:
    """The back ends of this machine, and the bare run."""
    backends: dict[str, Timed] = {"bare": bare}
    for kind in (BubblewrapExecutor, NamespaceExecutor):
        try:
            executor: LaunchedExecutor = kind()
            backends[executor.name] = launched(executor)
        except IsolationUnavailable as error:
            print(f"{kind.name}: {error.reason}")
    try:
        backends["docker"] = contained(DockerExecutor(docker_host))
    except IsolationUnavailable as error:
        print(f"docker: {error.reason}")
    return backends


def main() -> None:
    """Measures and prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--docker-host", default="", help="address of the engine")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    result = measure(found(chosen.docker_host), chosen.rounds)
    if chosen.json:
        print(json.dumps(result, indent=2))
        return
    loads = " ".join(f"{load:.1f}" for load in os.getloadavg())
    print(f"median of {chosen.rounds} rounds, {os.cpu_count()} processors, load average {loads}")
    print(f"{'ms':<12}" + "".join(f"{stage:>10}" for stage in (*STAGES, "total", "overhead")))
    for name, stages in result.items():
        values = [stages.get(stage) for stage in (*STAGES, "total")]
        values.append(stages["total"] - result["bare"]["total"])
        shown = "".join("         -" if v is None else f"{v:10.1f}" for v in values)
        print(f"{name:<12}{shown}")


if __name__ == "__main__":
    main()
