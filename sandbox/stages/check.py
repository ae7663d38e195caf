"""The check stage: does the candidate compute the right result, under every schedule tried?

Inputs come from the secret seed and go into the sandbox; reference, golden, comparison and seed
stay here. Each run makes several launches back to back with fresh inputs, and every output of each
is compared. Schedule seed 0 is the eager schedule: what is right there and wrong elsewhere is a
race.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pk_runtime.sheet import Sheet
from pk_runtime.simulator import Simulator, TensorSpec
from problems.compare import Checker
from problems.description import Description, ShapeInfo
from problems.findings import Comparison
from problems.hosting import Materialized, ProblemHost
from sandbox.stages import Progress, StageFailed
from sandbox.stages.demand import figures
from sandbox.stages.diagnosis import failure
from sandbox.verdict import Depth

EAGER = 0
LATEST = 1
LARGE_BYTES = 1 << 20
_SMALL_WALL_S, _LARGE_WALL_S = 8.0, 60.0


@dataclass(frozen=True)
class Plan:
    """How thoroughly to check: launches per run, and how many drawn schedules per shape."""

    shapes: tuple[str, ...]
    world_sizes: tuple[int, ...]
    launches: int
    drawn_schedules: int
    drawn_schedules_large: int


def plan(depth: Depth, shapes: Sequence[str], world_size: int) -> Plan:
    """The plan of a depth; `shapes` are the names of the problem's check shapes, smallest first."""
    if depth == "quick":
        return Plan(tuple(shapes[:1]), (world_size,), 2, 2, 1)
    worlds = tuple(sorted({min(2, world_size), world_size}))
    return Plan(tuple(shapes), worlds, 3, 6, 1)


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
                    done.append(self._shape(todo, description, known[name]))
        runs = sum(len(entry["schedules"]) for entry in done)
        shapes = ", ".join(dict.fromkeys(entry["shape"] for entry in done))
        worlds = " and ".join(str(w) for w in sorted({entry["world_size"] for entry in done}))
        return {
            "summary": f"Right at {shapes} on {worlds} ranks: {runs} runs of {todo.launches} "
            "launches back to back, every output compared.",
            "checks": done,
        }

    def _shape(self, todo: Plan, description: Description, shape: ShapeInfo) -> dict[str, Any]:
        world_size = description.world_size
        draws = [
            derive(self.seed, "inputs", shape.name, world_size, launch)
            for launch in range(todo.launches)
        ]
        launches = [self.host.materialize(shape.name, world_size, draw) for draw in draws]
        checkers = [Checker(description, made.golden, made.reference) for made in launches]
        large = _bytes_of(launches[0]) > LARGE_BYTES
        case = _Case(self, shape, world_size, launches, checkers, draws, large)
        schedules = list(self._schedules(todo, shape.name, world_size, large))
        errors: dict[str, Any] = {}
        for schedule in schedules:
            try:
                errors = case.judge(schedule)
            except StageFailed as failed:
                if failed.status == "race" and EAGER not in schedules:
                    case.judge(EAGER)  # wrong there as well: not a race
                raise
        return {"shape": shape.name, "world_size": world_size, "dims": dict(shape.dims),
                "schedules": schedules, "errors": errors,
                "demand": case.demand}  # fmt: skip

    def _schedules(self, todo: Plan, shape: str, world_size: int, large: bool) -> Iterator[int]:
        """The eager and the latest schedule, then drawn ones; for a large shape only drawn ones."""
        if not large:
            yield from (EAGER, LATEST)
        for number in range(todo.drawn_schedules_large if large else todo.drawn_schedules):
            yield 2 + derive(self.seed, "schedule", shape, world_size, number) % ((1 << 31) - 2)


@dataclass(frozen=True)
class _Case:
    """One shape at one world size: what goes in, and what must come out of every launch."""

    check: Check
    shape: ShapeInfo
    world_size: int
    launches: Sequence[Materialized]
    checkers: Sequence[Checker]
    draws: Sequence[int]
    large: bool
    demand: list[dict[str, float]] = field(default_factory=list)

    def judge(self, schedule: int) -> dict[str, Any]:
        """Runs one schedule; the largest errors by output, or StageFailed."""
        run = self.check.simulator.functional(
            self.check.program,
            launches=[made.inputs for made in self.launches],
            outputs=[TensorSpec(name, spec.shape, spec.dtype)
                     for name, spec in self.shape.outputs.items()],
            sheet=self.check.sheet,
            schedule_seed=schedule,
            wall_s=_LARGE_WALL_S if self.large else _SMALL_WALL_S,
        )  # fmt: skip
        if run.outcome != "finished":
            status, evidence = failure(run.outcome, run.diagnosis, self._where(schedule))
            raise StageFailed("check", status, {**evidence, **self._place(schedule)})
        self.demand[:] = figures(run.diagnosis)
        errors: dict[str, Any] = {}
        for number, outputs in enumerate(run.outputs):
            comparison = self.checkers[number].compare(outputs, self._bank(number))
            if not comparison.ok:
                self._wrong(comparison, schedule, number)
            errors = comparison.to_json()["measured"]
        return errors

    def _bank(self, number: int) -> Callable[[], Any]:
        """Known wrong answers of one launch; made only when an output is wrong."""

        def bank() -> Any:
            defective = self.check.host.defective(
                self.shape.name, self.world_size, self.draws[number]
            )
            previous = self.launches[number - 1].reference if number else None
            return self.launches[number].bank(defective=defective, previous=previous)

        return bank

    def _wrong(self, comparison: Comparison, schedule: int, launch: int) -> None:
        place = {**self._place(schedule), "launch": launch}
        report = comparison.to_json()
        text = comparison.summary
        if schedule != EAGER:
            summary = (
                f"Right when every transfer lands at once (schedule 0), wrong when it does not "
                f"({self._where(schedule)}, launch {launch}): something is read or overwritten "
                f"before a wait makes it safe. {text}"
            )
            raise StageFailed("check", "race", {"summary": summary, **place, "comparison": report})
        again = (
            " The launch before it was right: something is left over between launches."
            if launch
            else ""
        )
        summary = f"{text} ({self._where(schedule)}, launch {launch}.){again}"
        raise StageFailed(
            "check", "wrong_output", {"summary": summary, **place, "comparison": report}
        )

    def _place(self, schedule: int) -> dict[str, Any]:
        return {"shape": self.shape.name, "world_size": self.world_size,
                "dims": dict(self.shape.dims), "schedule_seed": schedule}  # fmt: skip

    def _where(self, schedule: int) -> str:
        return f"shape {self.shape.name}, {self.world_size} ranks, schedule {schedule}"


def _bytes_of(made: Materialized) -> int:
    """Bytes of all ranks' inputs and outputs of one launch."""
    sets = (made.inputs, made.reference)
    return sum(t.numel() * t.element_size() for ranks in sets for r in ranks for t in r.values())
