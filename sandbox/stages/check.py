"""The check stage: does the candidate compute the right result, under every schedule tried?

Inputs come from the secret seed and go into the sandbox; reference, golden, comparison and seed
stay here. Each run makes several launches back to back with fresh inputs, and every output of each
is compared. What is right under the eager schedule and wrong elsewhere is a race. What fails is
shrunk, for a few seconds: the evidence has the smallest run that fails in the same way.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from pk_runtime.exploration import Exploration, Grid, Outcome
from pk_runtime.run_folder import RankTensors
from pk_runtime.schedules import EAGER, LATEST, Schedule, Search, drawn
from pk_runtime.sheet import Sheet
from pk_runtime.shrink import (
    WRONG_OUTPUT,
    Case,
    Finding,
    Reproducer,
    Setting,
    kind_of,
    shrink,
)
from pk_runtime.simulator import Simulator, TensorSpec
from problems.answers.compare import Checker
from problems.answers.findings import Comparison
from problems.description import Description, ShapeInfo
from problems.errors import ProblemError
from problems.hosting import Materialized, ProblemHost
from problems.scales import told
from sandbox.stages import Progress, StageFailed
from sandbox.stages.demand import figures
from sandbox.stages.diagnosis import bounded, failure
from sandbox.stages.plan import Plan, Replay
from sandbox.verdict import Status

LARGE_BYTES = 1 << 20
_SMALL_WALL_S, _LARGE_WALL_S = 8.0, 60.0
_SHRINK_WALL_S = 3.0
_USUAL, _NARROW = Grid(5), Grid(2)


def derive(seed: int, *parts: object) -> int:
    """A number below 2^63 drawn from the verdict's seed and what it is for."""
    key = "/".join(map(str, (seed, *parts))).encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> 1


@dataclass(frozen=True)
class Check:
    """One program under check. `run` raises StageFailed at the first wrong or failed run."""

    program: Path
    simulator: Simulator
    host: ProblemHost
    sheet: Sheet
    seed: int
    progress: Progress

    def run(self, todo: Plan) -> dict[str, Any]:
        """Makes every run of the plan; returns what was checked, as evidence."""
        done = []
        for world_size in sorted(todo.world_sizes, reverse=True):
            description = self.host.describe(world_size)
            known = {shape.name: shape for shape in description.shapes}
            for name in todo.shapes:
                if name in known:
                    self.progress("check", {"shape": name, "world_size": world_size})
                    case = _Case.of(self, description, known[name], todo.launches)
                    done.append(self._shape(todo, case, search=name == todo.shapes[0]))
        return {"summary": _summary(todo, done), "checks": done}

    def replay(self, which: Replay) -> dict[str, Any]:
        """Makes one run of an earlier check with the same seed; raises UnknownShape."""
        description = self.host.describe(which.world_size)
        shape = description.shape(which.shape)
        self.progress("check", {"shape": shape.name, "world_size": which.world_size})
        case = _Case.of(self, description, shape, which.launches)
        case.judge([which.schedule], Grid(which.compute_sms))
        return {"summary": f"Right: {which}.", "checks": [case.entry([which.schedule])]}

    def _shape(self, todo: Plan, case: "_Case", search: bool) -> dict[str, Any]:
        drawn_here = list(self._drawn(todo, case))
        if case.large:
            case.judge(drawn_here, _USUAL)
            return case.entry(drawn_here)
        narrow = drawn_here[1::2] if todo.narrow else []
        usual = [EAGER, LATEST, *(s for s in drawn_here if s not in narrow)]
        case.judge(usual, _USUAL)
        if narrow:
            case.judge(narrow, _NARROW)
        entry = case.entry([*usual, *narrow])
        if search:
            entry["orders"] = case.search(todo)
        return entry

    def _drawn(self, todo: Plan, case: "_Case") -> Iterator[Schedule]:
        """Random and PCT schedules by turns."""
        number = todo.drawn_schedules_large if case.large else todo.drawn_schedules
        seed = derive(self.seed, "schedule", case.shape.name, case.world_size)
        yield from drawn("mixed", number + 2, seed)[2:]


def _summary(todo: Plan, done: Sequence[Mapping[str, Any]]) -> str:
    runs = sum(len(entry["schedules"]) for entry in done)
    shapes = ", ".join(dict.fromkeys(entry["shape"] for entry in done))
    worlds = " and ".join(str(w) for w in sorted({entry["world_size"] for entry in done}))
    text = (
        f"Right at {shapes} on {worlds} ranks: {runs} runs of {todo.launches} "
        "launches back to back, every output compared."
    )
    for entry in done:
        orders = entry.get("orders", {})
        if orders.get("complete"):
            every = "The one order" if orders["run"] == 1 else f"All {orders['run']} orders"
            text += (
                f" {every} of synchronization of {entry['shape']} on {entry['world_size']} ranks "
                f"{'passes' if orders['run'] == 1 else 'pass'}."
            )
    return text


@dataclass(frozen=True)
class _Case:
    """One shape at one world size: what goes in, and what must come out of every launch."""

    check: Check
    shape: ShapeInfo
    world_size: int
    launches: Sequence[Materialized]
    checkers: Sequence[Checker]
    draws: Sequence[int]
    scales: Sequence[int]
    large: bool
    demand: list[dict[str, float]] = field(default_factory=list)
    errors: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(check: Check, description: Description, shape: ShapeInfo, launches: int) -> "_Case":
        """The case with inputs drawn from the check's seed."""
        world = description.world_size
        draws = [derive(check.seed, "inputs", shape.name, world, n) for n in range(launches)]
        made = [check.host.materialize(shape.name, world, draw) for draw in draws]
        checkers = [Checker(description, one.golden, one.reference) for one in made]
        large = _bytes_of(made[0]) > LARGE_BYTES
        scales = [description.exponent(shape, draw) for draw in draws]
        return _Case(check, shape, world, made, checkers, draws, scales, large)

    def entry(self, schedules: Sequence[Schedule]) -> dict[str, Any]:
        """What was checked, as evidence."""
        return {"shape": self.shape.name, "world_size": self.world_size,
                "dims": dict(self.shape.dims), "schedules": [str(s) for s in schedules],
                "scales": told(self.scales), "errors": self.errors,
                "demand": self.demand}  # fmt: skip

    def judge(self, schedules: Sequence[Schedule], grid: Grid) -> None:
        """Runs schedules; StageFailed at the first that is wrong."""
        found = self._explore(schedules, grid, len(schedules) * self._run_wall_s)
        if found.stopped_by == "wall":
            text = f"{found.schedules_run} of {len(schedules)} schedules took all of the time"
            self._ended("timeout", {"summary": text}, found.last or schedules[0], grid)
        self._conclude(found, grid)

    def search(self, todo: Plan) -> dict[str, Any]:
        """Every order of synchronization, within the plan's bounds; StageFailed if one is wrong."""
        found = self._explore("exhaustive", _USUAL, todo.search_wall_s, todo.orders)
        self._conclude(found, _USUAL)
        return {"run": found.schedules_run, "complete": found.complete,
                "stopped_by": found.stopped_by, "redundant": found.redundant}  # fmt: skip

    @property
    def _run_wall_s(self) -> float:
        return _LARGE_WALL_S if self.large else _SMALL_WALL_S

    def _explore(
        self, strategy: Search | Sequence[Schedule], grid: Grid, wall_s: float, most: int = 1 << 20
    ) -> Exploration:
        return self.check.simulator.explore(
            self.check.program,
            launches=[made.inputs for made in self.launches],
            outputs=[TensorSpec(name, spec.shape, spec.dtype)
                     for name, spec in self.shape.outputs.items()],
            sheet=self.check.sheet,
            strategy=strategy,
            schedules=most,
            grid=grid,
            run_wall_s=self._run_wall_s,
            wall_s=wall_s,
        )  # fmt: skip

    def _conclude(self, found: Exploration, grid: Grid) -> None:
        for schedule, launches in found.outputs:
            for number, outputs in enumerate(launches):
                comparison = self.checkers[number].compare(outputs, self._bank(number))
                if not comparison.ok:
                    self._wrong(comparison, schedule, grid, number)
                self.errors.update(comparison.to_json()["measured"])
        if found.outcome != "finished":
            self._ended(found.outcome, found.diagnosis, found.last or EAGER, grid)
        if grid == _USUAL:
            self.demand[:] = figures(found.diagnosis)

    def _ended(
        self, outcome: Outcome, report: Mapping[str, Any], schedule: Schedule, grid: Grid
    ) -> NoReturn:
        status, evidence = failure(outcome, report, self._where(schedule))
        place = self._place(schedule, grid)
        smallest = self._smallest(kind_of(outcome, report), schedule, grid)
        raise StageFailed("check", status, {**evidence, **place, **smallest})

    def _bank(self, number: int) -> Callable[[], Any]:
        """Known wrong answers of one launch; made only when an output is wrong."""

        def bank() -> Any:
            defective = self.check.host.defective(
                self.shape.name, self.world_size, self.draws[number]
            )
            previous = self.launches[number - 1].reference if number else None
            return self.launches[number].bank(defective=defective, previous=previous)

        return bank

    def _wrong(
        self, comparison: Comparison, schedule: Schedule, grid: Grid, launch: int
    ) -> NoReturn:
        scale = told([self.scales[launch]])
        at = f"launch {launch}, inputs times {scale}"
        place = {**self._place(schedule, grid), "launch": launch, "scale": scale}
        text = comparison.summary
        # A large shape has not been run eagerly yet; what is wrong there as well is no race.
        ordered = schedule != EAGER and (not self.large or self._right_when_eager(grid))
        if ordered:
            status: Status = "race"
            summary = (
                f"Right when every transfer lands at once (the eager schedule), wrong when it does "
                f"not ({self._where(schedule)}, {at}): something is read or overwritten "
                f"before a wait makes it safe. {text}"
            )
        else:
            status = "wrong_output"
            again = " The launch before it was right: something is left over between launches."
            summary = f"{text} ({self._where(schedule)}, {at}.){again if launch else ''}"
        smallest = self._smallest(WRONG_OUTPUT, schedule, grid)
        evidence = {"summary": summary, **place, "comparison": comparison.to_json(), **smallest}
        raise StageFailed("check", status, evidence)

    def _right_when_eager(self, grid: Grid) -> bool:
        found = self._explore([EAGER], grid, _LARGE_WALL_S)
        return found.outcome == "finished" and not self.wrong(found.outputs[0][1])

    def wrong(self, launches: Sequence[Sequence[RankTensors]]) -> str:
        """What is wrong with a run's outputs, in a sentence; "" if all are right."""
        for number, outputs in enumerate(launches):
            comparison = self.checkers[number].compare(outputs)
            if not comparison.ok:
                return comparison.summary
        return ""

    def _smallest(self, kind: str, schedule: Schedule, grid: Grid) -> dict[str, Any]:
        """The smallest run that fails in the same way, as evidence; nothing if none is smaller."""
        setting = Setting(self.world_size, len(self.launches), self.shape.dims, grid, schedule)
        return smallest(self.check, Finding(kind, setting), _SHRINK_WALL_S)

    def _place(self, schedule: Schedule, grid: Grid) -> dict[str, Any]:
        assert isinstance(grid.compute_sms, int)
        replay = Replay(
            self.shape.name, self.world_size, len(self.launches), grid.compute_sms, schedule
        )
        return {"shape": self.shape.name, "world_size": self.world_size,
                "dims": dict(self.shape.dims), "schedule": str(schedule),
                "replay": str(replay)}  # fmt: skip

    def _where(self, schedule: Schedule) -> str:
        return f"shape {self.shape.name}, {self.world_size} ranks, schedule {schedule}"


def smallest(check: Check, first: Finding, wall_s: float) -> dict[str, Any]:
    """Shrinks a finding among the problem's check shapes; the evidence's entry, or none."""

    def shapes(world_size: int) -> list[tuple[Description, ShapeInfo]]:
        description = check.host.describe(world_size)
        return [(description, shape) for shape in description.shapes if shape.kind == "check"]

    def case_of(setting: Setting) -> _Case | None:
        for description, shape in shapes(setting.world_size):
            if shape.dims == setting.dims:
                return _Case.of(check, description, shape, setting.launches)
        return None

    def make(setting: Setting) -> Case | None:
        made = case_of(setting)
        if made is None or made.large:
            return None
        outputs = [TensorSpec(n, s.shape, s.dtype) for n, s in made.shape.outputs.items()]
        return Case([one.inputs for one in made.launches], outputs, made.wrong)

    def smaller_dims(setting: Setting) -> Iterator[Mapping[str, int]]:
        for _, shape in shapes(setting.world_size):
            if shape.dims == setting.dims:
                return
            yield shape.dims

    try:
        found = shrink(
            first, Reproducer(check.simulator, check.program, check.sheet, make),
            smaller_dims=smaller_dims, wall_s=wall_s,
        )  # fmt: skip
    except ProblemError:  # a world size that the problem does not take
        return {}
    if found is first:
        return {}
    at = case_of(found.setting)
    place = at._place(found.setting.schedule, found.setting.grid) if at else {}
    report = bounded(found.report)
    return {"smallest": {**found.setting.to_json(), **place,
                         "summary": report.get("summary", "")}}  # fmt: skip


def _bytes_of(made: Materialized) -> int:
    """Bytes of all ranks' inputs and outputs of one launch."""
    sets = (made.inputs, made.reference)
    return sum(t.numel() * t.element_size() for ranks in sets for r in ranks for t in r.values())
