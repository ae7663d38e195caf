"""Runs emulator programs: inputs in, outputs and findings out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pk_runtime.emulator.findings import Finding, findings_of
from pk_runtime.execution import Command, Executor, Limits
from pk_runtime.run_folder import (
    RankTensors,
    TensorSpec,
    read_outputs,
    read_untrusted,
    run_folder,
    specs_of,
    tensor_lines,
    write_inputs,
    write_request,
)

Outcome = Literal["finished", "race", "deadlock", "fault", "refused", "timeout"]

MEMORY_BYTES = 4 << 30
REPORT_BYTES = 4 << 20
_ENDED_BY = ("finished", "race", "deadlock", "fault", "refused")


@dataclass(frozen=True)
class Emulation:
    """How a run ended. `outputs[launch][rank][name]` are there if every launch was completed.

    `race`: it ran to its end, and `findings` are not empty. `deadlock` and `fault`: `summary` is
    the kernel's own record of who gave up or what was out of range, `waiting` who waits for what.
    """

    outcome: Outcome
    summary: str = ""
    findings: list[Finding] = field(default_factory=list)
    waiting: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[list[RankTensors]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.outcome}: {self.summary}" if self.summary else self.outcome]
        lines += [str(finding) for finding in self.findings]
        lines += [
            f"rank {w['rank']} block {w['block']} thread {w['thread']} waits for {w['for']}"
            for w in self.waiting
        ]
        return "\n".join(lines)


class Emulator:
    """Runs programs of `EmulatorBuilder`. `workspace` holds one fresh directory per run."""

    def __init__(self, executor: Executor, workspace: Path) -> None:
        self._executor = executor
        self._workspace = workspace

    def run(
        self,
        program: Path,
        *,
        launches: Sequence[Sequence[RankTensors]],
        outputs: Sequence[TensorSpec],
        blocks: int = 2,
        seed: int = 0,
        wall_s: float = 60.0,
    ) -> Emulation:
        """Runs `launches[launch][rank][name]` back to back on as many ranks, `blocks` blocks each.

        Seed 0 takes threads in turn and completes copies late; others take them in random order,
        and from 2 on one rank is slow. Each launch overwrites the inputs of the one before.
        """
        world = len(launches[0])
        request = [
            f"world {world}",
            f"launches {len(launches)}",
            f"blocks {blocks}",
            f"seed {seed}",
        ]
        with run_folder(self._workspace, "emulate-") as where:
            write_request(where, [*request, *tensor_lines(specs_of(launches), outputs)])
            write_inputs(where, launches)
            limits = Limits(wall_s, MEMORY_BYTES, processes=4)
            done = self._executor.run(Command((str(program),), where, (program,), {}, limits))
            if done.exceeded == "wall":
                return Emulation("timeout", f"still running after {wall_s:g} s; it was stopped")
            try:
                report = json.loads(read_untrusted(where / "report.json", REPORT_BYTES))
                findings = findings_of(report, program, self._executor)
                outcome, summary = report["outcome"], str(report["summary"])
                waiting = [dict(w) for w in report["waiting"]]
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                return Emulation("fault", f"the program left no usable report: {error!r}")
            if outcome not in _ENDED_BY:
                return Emulation("fault", "the report has an outcome that is not known")
            found: list[list[RankTensors]] = []
            if outcome in ("finished", "race"):
                try:
                    found = read_outputs(where, "out", len(launches), world, outputs)
                except (OSError, ValueError) as error:
                    return Emulation("fault", f"an output is unusable: {error}", findings)
        return Emulation(outcome, summary, findings, waiting, found)
