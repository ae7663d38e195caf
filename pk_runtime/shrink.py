"""Shrinking a finding: the smallest world, grid, number of launches and shape that still shows it.

Greedy, after delta debugging (Zeller and Hildebrandt, 2002): a smaller setting is kept if it shows
a finding of the same kind, and the search begins again from there, until nothing smaller does or
the time is over. Each setting is run under the schedule that showed the finding, then under a few
others, because a schedule means something else for another grid.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pk_runtime.exploration import Exploration, Grid
from pk_runtime.run_folder import RankTensors
from pk_runtime.schedules import EAGER, Schedule, drawn
from pk_runtime.sheet import Sheet
from pk_runtime.simulator import Simulator, TensorSpec

WRONG_OUTPUT = "wrong_output"
_OTHERS = 6
_RUN_WALL_S = 2.0


@dataclass(frozen=True)
class Setting:
    """Where a finding shows: everything but the program and the inputs' values."""

    world_size: int
    launches: int
    dims: Mapping[str, int]
    grid: Grid
    schedule: Schedule

    def to_json(self) -> dict[str, Any]:
        """The setting as JSON."""
        return {"world_size": self.world_size, "launches": self.launches, "dims": dict(self.dims),
                **self.grid.to_json(), "schedule": str(self.schedule)}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """What was found. Two findings are of one kind if `kind` is the same."""

    kind: str
    setting: Setting
    report: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """What goes in, by launch and rank, and what comes out.

    `wrong` is given `outputs[launch][rank][name]`; it says what is wrong, or "".
    """

    launches: Sequence[Sequence[RankTensors]]
    outputs: Sequence[TensorSpec]
    wrong: Callable[[list[list[RankTensors]]], str] = lambda outputs: ""


@dataclass(frozen=True)
class Reproducer:
    """Runs settings. `make` gives the case of a setting, or None where its dims are not legal."""

    simulator: Simulator
    program: Path
    sheet: Sheet
    make: Callable[[Setting], Case | None]

    def __call__(self, setting: Setting, kind: str, wall_s: float) -> Finding | None:
        """A finding of this kind in this setting, if a few schedules show one within `wall_s`."""
        case = self.make(setting)
        if case is None:
            return None
        found = self.simulator.explore(
            self.program,
            launches=case.launches,
            outputs=case.outputs,
            sheet=self.sheet,
            strategy=[setting.schedule, *drawn("mixed", _OTHERS, seed=0)],
            grid=setting.grid,
            run_wall_s=min(_RUN_WALL_S, wall_s),
            wall_s=wall_s,
        )
        shown = finding_of(found, case, setting)
        return shown if shown is not None and shown.kind == kind else None


def finding_of(found: Exploration, case: Case, setting: Setting) -> Finding | None:
    """What an exploration of a case has found: a wrong output, or how a schedule ended."""
    for schedule, outputs in found.outputs:
        if why := case.wrong(outputs):
            return Finding(WRONG_OUTPUT, replace(setting, schedule=schedule), {"summary": why})
    if found.outcome == "finished":
        return None
    last = found.last or setting.schedule
    kind = kind_of(found.outcome, found.diagnosis)
    return Finding(kind, replace(setting, schedule=last), found.diagnosis)


def kind_of(outcome: str, report: Mapping[str, Any]) -> str:
    """The kind of a finding: outcome, and class or kind where the report names one."""
    detail = report.get("class") or report.get("kind")
    return f"{outcome}: {detail}" if isinstance(detail, str) else outcome


def shrink(
    finding: Finding,
    reproduce: Callable[[Setting, str, float], Finding | None],
    *,
    smaller_dims: Callable[[Setting], Iterable[Mapping[str, int]]] = lambda setting: (),
    wall_s: float = 5.0,
) -> Finding:
    """The smallest finding of the same kind met within `wall_s` seconds; at worst `finding` itself.

    `reproduce(setting, kind, wall_s)` is usually a `Reproducer`. `smaller_dims` lists legal dims
    below a setting's, the smallest first.
    """
    end = time.monotonic() + wall_s
    refused: set[str] = set()
    while True:
        for setting in _smaller(finding.setting, smaller_dims):
            left = end - time.monotonic()
            if left <= 0:
                return finding
            key = repr(replace(setting, schedule=EAGER))
            if key in refused:
                continue
            shown = reproduce(setting, finding.kind, left)
            if shown is not None:
                finding = shown
                break
            refused.add(key)
        else:
            return finding


def _smaller(
    now: Setting, smaller_dims: Callable[[Setting], Iterable[Mapping[str, int]]]
) -> Iterator[Setting]:
    """Settings with one thing less, what saves most first."""
    for launches in sorted({1, now.launches - 1}):
        if 0 < launches < now.launches:
            yield replace(now, launches=launches)
    for world in sorted({2, now.world_size - 1}):
        if 1 < world < now.world_size:
            yield replace(now, world_size=world, grid=_of_ranks(now.grid, world))
    for dims in smaller_dims(now):
        yield replace(now, dims=dims)
    if isinstance(now.grid.compute_sms, int):
        for sms in sorted({1, 2, now.grid.compute_sms - 1}):
            if 0 < sms < now.grid.compute_sms:
                yield replace(now, grid=replace(now.grid, compute_sms=sms))
    else:
        fewer = tuple(max(1, sms - 1) for sms in now.grid.compute_sms)
        if fewer != now.grid.compute_sms:
            yield replace(now, grid=replace(now.grid, compute_sms=fewer))


def _of_ranks(grid: Grid, world: int) -> Grid:
    sms = grid.compute_sms
    return grid if isinstance(sms, int) else replace(grid, compute_sms=sms[:world])
