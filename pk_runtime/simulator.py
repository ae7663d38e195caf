"""Running a kernel in the simulator: inputs in, outputs, diagnosis or a predicted time out.

The program is the kernel linked with the engine of `pk_runtime/sim`. It runs through an `Executor`,
in a directory that holds only what it may see: a request, the inputs, and what it writes itself.
Everything read back is data from an untrusted process and is checked before it is used.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pk_runtime.bottleneck import Bottleneck, explain
from pk_runtime.execution import Command, Completed, Executor, Limits
from pk_runtime.exploration import ENDED_BY, Exploration, Grid, lost, read_exploration
from pk_runtime.exploration import Outcome as Outcome
from pk_runtime.report import Split, path_of
from pk_runtime.run_folder import (
    RankTensors,
    read_outputs,
    read_untrusted,
    run_folder,
    specs_of,
    tensor_lines,
    write_inputs,
    write_request,
)
from pk_runtime.run_folder import SimulatorError as SimulatorError
from pk_runtime.run_folder import TensorSpec as TensorSpec
from pk_runtime.schedules import Schedule, Search, drawn
from pk_runtime.sheet import Sheet
from pk_runtime.source_lines import with_lines
from pk_runtime.trace import Trace, TraceError, write_chrome

MEMORY_BYTES = 6 << 30
# One and one it forks for a schedule; where the limit counts a user's, those of other runs too.
PROCESSES = 64
COMPUTE_SMS = 5  # of a functional run
REPORT_BYTES = 4 << 20
TRACE_BYTES = 64 << 20
TRACE_BLOCKS = 3
_WALL_MARGIN_S = 2.0


@dataclass(frozen=True)
class FunctionalRun:
    """What happened under one schedule. `outputs[launch][rank][name]`; empty unless it finished."""

    outcome: Outcome
    outputs: list[list[RankTensors]] = field(default_factory=list)
    diagnosis: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TimingRun:
    """Predicted time in microseconds, what it is spent on and bound by, the raw figures by rank.

    `timeline` is there if the run was asked to record one.
    """

    outcome: Outcome
    time_us: float = math.nan
    bottleneck: Bottleneck | None = None
    path: Split | None = None
    diagnosis: dict[str, Any] = field(default_factory=dict)
    timeline: Trace | None = None


class Simulator:
    """Runs simulator programs. `workspace` holds one fresh directory per run, then removed."""

    def __init__(self, executor: Executor, workspace: Path) -> None:
        self._executor = executor
        self._workspace = workspace

    def functional(
        self,
        program: Path,
        *,
        launches: Sequence[Sequence[RankTensors]],
        outputs: Sequence[TensorSpec],
        sheet: Sheet,
        schedule_seed: int = 0,
        schedule: Schedule | None = None,
        compute_sms: int = COMPUTE_SMS,
        grid: Grid | None = None,
        wall_s: float = 10.0,
    ) -> FunctionalRun:
        """Runs `launches[launch][rank][name]` back to back under one schedule.

        World size is the number of ranks in each launch. The schedule is `schedule`, or that of
        `schedule_seed`: 0 is eager and in order, 1 lands everything as late as the rules allow,
        higher ones mix and slow one rank down. `grid` replaces `compute_sms`.
        """
        chosen = schedule or Schedule.of_seed(schedule_seed)
        request = [
            *_functional_lines(launches, outputs, sheet, grid or Grid(compute_sms), wall_s),
            f"schedule {chosen}",
        ]
        with run_folder(self._workspace, "run-") as where:
            write_inputs(where, launches)
            size = len(launches), len(launches[0])
            report, completed = self._run(program, where, request, wall_s)
            outcome = _outcome(report, completed)
            if outcome != "finished":
                return FunctionalRun(outcome, diagnosis=report)
            try:
                found = read_outputs(where, "out", *size, outputs)
            except (OSError, ValueError) as error:
                return FunctionalRun("fault", diagnosis=lost(f"an output is unusable: {error}"))
            return FunctionalRun("finished", found, report)

    def explore(
        self,
        program: Path,
        *,
        launches: Sequence[Sequence[RankTensors]],
        outputs: Sequence[TensorSpec],
        sheet: Sheet,
        strategy: Search | Sequence[Schedule] = "mixed",
        schedules: int = 100,
        seed: int = 0,
        grid: Grid | None = None,
        run_wall_s: float = 10.0,
        wall_s: float = 10.0,
    ) -> Exploration:
        """Runs many schedules of `launches[launch][rank][name]`, one after the other.

        `strategy` is "mixed" (eager, latest, then random and PCT by turns), "random", "pct",
        "exhaustive" (every order of synchronization that can make a difference), or the schedules
        themselves. It ends after `schedules` of them, after `wall_s` seconds, or at the first that
        does not finish; one that takes more than `run_wall_s` is a timeout.
        """
        exhaustive = strategy == "exhaustive"
        todo = drawn(strategy, schedules, seed) if isinstance(strategy, str) and not exhaustive \
            else () if exhaustive else strategy  # fmt: skip
        request = [
            *_functional_lines(launches, outputs, sheet, grid or Grid(), run_wall_s),
            f"explore {'exhaustive' if exhaustive else 'listed'} {schedules} {wall_s}",
            *(f"schedule {schedule}" for schedule in todo),
        ]
        with run_folder(self._workspace, "run-") as where:
            write_inputs(where, launches)
            size = len(launches), len(launches[0])
            report, completed = self._run(program, where, request, wall_s + run_wall_s)
            if completed.exit_code != 0 or report.get("outcome") != "explored":
                outcome = _outcome(report, completed)
                if outcome == "finished":  # without the outputs that would show it
                    outcome, report = "fault", lost("the report is of another kind of run")
                return Exploration(outcome, diagnosis=report)
            try:
                kinds = [
                    (Schedule(text), read_outputs(where, f"out{number}", *size, outputs))
                    for number, text in enumerate(report["outputs"])
                ]
                return read_exploration(report, kinds)
            except (OSError, ValueError, KeyError, TypeError) as error:
                return Exploration("fault", diagnosis=lost(f"the report is unusable: {error}"))

    def timing(
        self,
        program: Path,
        *,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        world_size: int,
        sheet: Sheet,
        compute_sms: int | None = None,
        warm: bool = False,
        wall_s: float = 60.0,
        trace: Path | bool = False,
    ) -> TimingRun:
        """Predicts the time of one launch at full shape, in a CUDA graph of several.

        Tensors have shapes and no contents. They come from HBM, as those of a caller who has done
        something else in between; if `warm`, they are in L2, as those of a loop over one call.
        With all SMs of the sheet, or `compute_sms` beside the kernel's communicator SMs.
        `trace` records what a few blocks of each kind do on every rank, and the use of links and
        memory: True keeps it in the result, a path has it written there as well, as Chrome trace
        events. OSError if that file cannot be written.
        """
        request = [
            "mode timing",
            f"world {world_size}",
            f"compute_sms {compute_sms}" if compute_sms else f"sms {sheet.chip.sms}",
            f"warm {int(warm)}",
            f"wall {wall_s}",
            f"trace {TRACE_BLOCKS if trace else 0}",
            *tensor_lines(inputs, outputs),
            *_parameter_lines(sheet),
        ]
        with run_folder(self._workspace, "run-") as where:
            report, completed = self._run(program, where, request, wall_s)
            timeline = _read_trace(where / "trace.json") if trace else None
        outcome = _outcome(report, completed)
        time_us = report.get("time_us")
        if outcome != "finished":
            return TimingRun(outcome, diagnosis=report)
        if not isinstance(time_us, float | int) or not math.isfinite(time_us) or time_us <= 0:
            return TimingRun("fault", diagnosis=lost("the report has no usable time"))
        try:
            bottleneck, path = explain(report, sheet), path_of(report)
        except (LookupError, TypeError, ValueError, ZeroDivisionError) as error:
            return TimingRun("fault", diagnosis=lost(f"the report is malformed: {error!r}"))
        if isinstance(timeline, str):
            return TimingRun("fault", diagnosis=lost(timeline))
        if timeline is not None and isinstance(trace, Path):
            write_chrome(trace, {f"{report.get('kernel', 'kernel')} simulated": timeline})
        return TimingRun("finished", float(time_us), bottleneck, path, report, timeline)

    def _run(
        self, program: Path, where: Path, request: Sequence[str], wall_s: float
    ) -> tuple[dict[str, Any], Completed]:
        write_request(where, request)
        command = Command(
            argv=(str(program),),
            workdir=where,
            read_only=(program,),
            env={},
            limits=Limits(
                wall_s=wall_s + _WALL_MARGIN_S, memory_bytes=MEMORY_BYTES, processes=PROCESSES
            ),
        )
        completed = self._executor.run(command)
        report = _read_report(where / "report.json")
        return with_lines(report, program, self._executor, where), completed


def _functional_lines(
    launches: Sequence[Sequence[RankTensors]],
    outputs: Sequence[TensorSpec],
    sheet: Sheet,
    grid: Grid,
    wall_s: float,
) -> Iterator[str]:
    yield "mode functional"
    yield f"world {len(launches[0])}"
    yield f"launches {len(launches)}"
    sms = grid.compute_sms if isinstance(grid.compute_sms, tuple) else (grid.compute_sms,)
    yield f"compute_sms {' '.join(map(str, sms))}"
    if grid.resident:
        yield f"resident {grid.resident} {grid.placement}"
    yield f"wall {wall_s}"
    yield from tensor_lines(specs_of(launches), outputs)
    yield from _parameter_lines(sheet)


def _parameter_lines(sheet: Sheet) -> Iterator[str]:
    for name, value in sheet.simulator_parameters().items():
        yield f"parameter {name} {value!r}"


def _read_report(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(read_untrusted(path, REPORT_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) and isinstance(report.get("summary", ""), str) else {}


def _read_trace(path: Path) -> Trace | str:
    """The timeline a run recorded, or what is wrong with it."""
    try:
        return Trace.from_engine(json.loads(read_untrusted(path, TRACE_BYTES)))
    except (OSError, RecursionError, ValueError) as error:
        what = error if isinstance(error, TraceError) else type(error).__name__
        return f"the run left no usable trace: {what}"


def _outcome(report: dict[str, Any], completed: Completed) -> Outcome:
    """How the run ended. A program that leaves no valid report has crashed or was stopped."""
    if completed.exceeded == "wall":
        report.setdefault(
            "summary", f"still running after {completed.wall_s:.1f} s; it was stopped"
        )
        return "timeout"
    if completed.exceeded is not None:
        report.clear()
        report.update(lost(f"stopped for exceeding its {completed.exceeded} limit"))
        return "fault"
    outcome = report.get("outcome")
    if completed.exit_code == 0 and outcome in ENDED_BY:
        return outcome  # type: ignore[no-any-return]
    how = f"signal {completed.signal}" if completed.signal else f"exit code {completed.exit_code}"
    report.clear()
    report.update(lost(f"the program ended with {how} and no report"))
    return "fault"
