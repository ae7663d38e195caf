"""The check stage on GPUs: alone, in bursts, with late ranks, with late inputs; all is compared.

A candidate that is right when each launch runs alone and wrong otherwise has a race; one that is
wrong alone computes something else.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from problems.answers.compare import Checker
from problems.description import Description, ShapeInfo
from problems.hosting import ProblemHost
from problems.scales import told
from sandbox.gpu.arena import set_bytes
from sandbox.gpu.case import specs_of
from sandbox.gpu.failures import diagnose
from sandbox.gpu.group import GroupEnded, RunnerGroup
from sandbox.gpu.pool import GpuPool
from sandbox.gpu.ranks import Found, RanksCase
from sandbox.stages import Progress, StageFailed
from sandbox.stages.check import derive
from sandbox.verdict import Depth

BURST = 20
_QUICK_BURST = 8
_ALONE = 5
_MOST_BYTES = 1 << 30
_LATE_US, _LATER_US = 500.0, 200.0


@dataclass(frozen=True)
class Plan:
    """Shapes and numbers of launches of a check; `worlds` largest first, the others get less."""

    shapes: tuple[str, ...]
    worlds: tuple[int, ...]
    burst: int


def plan(depth: Depth, shapes: Sequence[str], world_size: int) -> Plan:
    """The plan of a depth; `shapes` are the names of the problem's check shapes, smallest first."""
    if depth == "quick":
        return Plan(tuple(shapes[:1]), (world_size,), _QUICK_BURST)
    worlds = sorted({min(2, world_size), world_size}, reverse=True)
    return Plan(tuple(shapes), tuple(worlds), BURST)


def late_patterns(world: int, launches: int, seed: int) -> list[tuple[str, list[list[float]]]]:
    """(name, microseconds of delay by rank and launch) of every way in which ranks are late."""
    draw = random.Random(seed)
    always = draw.randrange(world)
    turn = max(1, launches // world)
    once = [[_LATE_US if n == rank * turn else 0.0 for n in range(launches)]
            for rank in range(world)]  # fmt: skip
    one = [[_LATER_US if rank == always else 0.0] * launches for rank in range(world)]
    drawn = [[draw.uniform(0, _LATE_US) for _ in range(launches)] for _ in range(world)]
    return [
        ("each rank late once", once),
        (f"rank {always} always late", one),
        ("every rank late at random", drawn),
    ]


@dataclass(frozen=True)
class Check:
    """A candidate under check. `run` raises StageFailed at the first wrong or failed launch."""

    pool: GpuPool
    runners: RunnerGroup
    host: ProblemHost
    seed: int
    progress: Progress

    def run(self, todo: Plan) -> dict[str, Any]:
        """Makes every launch of the plan; returns what was checked, as evidence."""
        done: list[dict[str, Any]] = []
        for world in todo.worlds:
            description = self.host.describe(world)
            known = {shape.name: shape for shape in description.shapes}
            names = [name for name in todo.shapes if name in known]
            burst = todo.burst if world == todo.worlds[0] else min(todo.burst, _QUICK_BURST)
            done += self._world(description, [known[name] for name in names], burst)
        launches = sum(entry["launches"] for entry in done)
        shapes = ", ".join(dict.fromkeys(entry["shape"] for entry in done))
        worlds = " and ".join(str(world) for world in sorted({e["world_size"] for e in done}))
        differ = [e["shape"] for e in done if e["same_bits_every_time"] is False]
        note = f" The bits differ from run to run at {', '.join(differ)}." if differ else ""
        return {
            "summary": f"Right at {shapes} on {worlds} GPUs: {launches} launches alone, in bursts, "
            f"with late ranks and with late inputs, every output compared.{note}",
            "checks": done,
        }

    def _world(
        self, description: Description, shapes: Sequence[ShapeInfo], burst: int
    ) -> list[dict[str, Any]]:
        """Every shape at one world size; after each, the first one again."""
        if not shapes:
            return []
        first, *others = shapes
        done = []
        with self._case(description, first, burst) as case:
            done.append(self._shape(case))
            for shape in others:
                with self._case(description, shape, burst) as other:
                    done.append(self._shape(other))
                if len(case.draws) > 0:
                    everything = range(len(case.draws))
                    case.attempt(f"in a burst, after shape {shape.name}", everything)
        return done

    def _case(self, description: Description, shape: ShapeInfo, burst: int) -> "_Case":
        world = description.world_size
        size = set_bytes(specs_of(shape.inputs), specs_of(shape.outputs))
        sets = min(burst, max(4, _MOST_BYTES // size))
        draws = [derive(self.seed, "gpu", shape.name, world, number) for number in range(sets)]
        where = f"shape {shape.name}, {world} ranks"
        try:
            opened = RanksCase(self.pool, self.runners, description, shape, draws, on_device=False)
        except GroupEnded as ended:
            raise failed("check", ended, f"{where}, binding the kernel", shape, world) from ended
        return _Case(self, opened)

    def _shape(self, case: "_Case") -> dict[str, Any]:
        ranks = case.ranks
        world, sets = ranks.world, len(ranks.draws)
        self.progress("check", {"shape": ranks.shape.name, "world_size": world})
        ranks.poison()
        alone = min(_ALONE, sets)
        for number in range(alone):
            case.run("alone", [number])
        found = case.judge("alone", range(alone), alone=True)
        same = True
        launches = alone + sets
        later = case.attempt("in a burst", range(sets))
        same = same and not later.differs
        for name, delays in late_patterns(world, sets, derive(self.seed, "late", case.where)):
            later = case.attempt(f"in a burst, {name}", range(sets), delays)
            same = same and not later.differs
            launches += sets
        for rank in range(world):
            later = case.late_inputs(rank)
            same = same and not later.differs
            launches += 1
        return {"shape": ranks.shape.name, "world_size": world, "dims": dict(ranks.shape.dims),
                "launches": launches, "scales": told(ranks.scales), "blocks": ranks.blocks,
                "errors": found.errors, "same_bits_every_time": same}  # fmt: skip


class _Case:
    """One opened case, and what it means when something is wrong there."""

    def __init__(self, check: Check, ranks: RanksCase) -> None:
        self._check = check
        self.ranks = ranks
        self.draws = ranks.draws
        self.where = f"shape {ranks.shape.name}, {ranks.world} ranks"

    def __enter__(self) -> "_Case":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.ranks.__exit__(kind, *rest)

    def run(
        self,
        how: str,
        sets: Sequence[int],
        delays: Sequence[Sequence[float]] = (),
        sources: Sequence[int] = (),
    ) -> None:
        """Launches sets; StageFailed if a rank does not come to its end."""
        try:
            self.ranks.launch(sets, delays, sources)
        except GroupEnded as ended:
            where = f"{self.where}, {how}"
            raise failed("check", ended, where, self.ranks.shape, self.ranks.world) from ended

    def attempt(
        self, how: str, sets: Sequence[int], delays: Sequence[Sequence[float]] = ()
    ) -> Found:
        """Poisons, launches the sets back to back, and judges them."""
        self.ranks.poison()
        self.run(how, sets, delays)
        return self.judge(how, sets)

    def late_inputs(self, late: int) -> Found:
        """One launch whose inputs come late on one rank; its outputs are cleared as late.

        An operator runs behind what makes its inputs and uses the memory of its outputs. So before
        all ranks are in a launch nobody may read a peer's inputs or write its outputs.
        """
        how = f"with inputs that reach rank {late} late"
        delays = [[_LATE_US if rank == late else 0.0] for rank in range(self.ranks.world)]
        self.ranks.poison()
        self.ranks.withhold(0, keeper=1)
        self.run(how, [0], delays, sources=[1])
        return self.judge(how, [0])

    def judge(self, how: str, sets: Sequence[int], *, alone: bool = False) -> Found:
        """What came out; StageFailed if anything is wrong."""
        found = self.ranks.verify(sets, remember=True)
        if not found.ok:
            self._touched(found, how)
            self._wrong(found, how, alone)
        return found

    def _touched(self, found: Found, how: str) -> None:
        touched(found, "check", f"{self.where}, {how}", self._place())

    def _wrong(self, found: Found, how: str, alone: bool) -> None:
        number, rank, name = found.wrong[0]
        comparison = self._comparison(number)
        text = str(comparison["summary"]) if comparison else f"{name} on rank {rank} is wrong."
        scale = told([self.ranks.scales[number]])
        evidence = {**self._place(), "launch": number, "scale": scale, "how": how,
                    **({"comparison": comparison} if comparison else {})}  # fmt: skip
        if not alone and self._right_alone(number):
            summary = (
                f"Right when each launch runs alone, wrong {how} ({self.where}, launch {number}, "
                f"inputs times {scale}): something is read or overwritten before a wait makes it "
                f"safe. {text}"
            )
            raise StageFailed("check", "race", {"summary": summary, **evidence})
        summary = f"{text} ({self.where}, {how}, inputs times {scale}.)"
        raise StageFailed("check", "wrong_output", {"summary": summary, **evidence})

    def _right_alone(self, number: int) -> bool:
        self.ranks.poison()
        self.run("alone", [number])
        return self.ranks.verify([number]).ok

    def _comparison(self, number: int) -> dict[str, Any]:
        """The same comparison as on simulated targets, with known wrong answers; {} if it passes.

        Reference and golden are computed anew on the CPU: the reference may differ in its last
        bits.
        """
        ranks, host = self.ranks, self._check.host
        shape, world, draw = ranks.shape.name, ranks.world, ranks.draws[number]
        made = host.materialize(shape, world, draw)
        checker = Checker(ranks.description, made.golden, made.reference)
        bank: Callable[[], Any] = lambda: made.bank(  # noqa: E731 - made only if it is needed
            defective=host.defective(shape, world, draw)
        )
        found = checker.compare(ranks.outputs(number), bank)
        return {} if found.ok else found.to_json()

    def _place(self) -> dict[str, Any]:
        return {"shape": self.ranks.shape.name, "world_size": self.ranks.world,
                "dims": dict(self.ranks.shape.dims)}  # fmt: skip


def failed(stage: Any, ended: GroupEnded, where: str, shape: ShapeInfo, world: int) -> StageFailed:
    """The stage's end when not every rank did a command."""
    status, evidence = diagnose(ended.outcomes, where)
    place = {"shape": shape.name, "world_size": world, "dims": dict(shape.dims)}
    return StageFailed(stage, status, {**evidence, **place, "during": ended.command})


def touched(found: Found, stage: Any, where: str, place: dict[str, Any]) -> None:
    """StageFailed if inputs or guard bytes were overwritten."""
    if found.changed:
        rank, name = found.changed[0]
        summary = (
            f"The kernel changes its input {name!r} on rank {rank} ({where}). Inputs stay as they "
            "are: write to outputs and scratch only."
        )
        raise StageFailed(stage, "crashed", {"summary": summary, **place, "rank": rank})
    if found.guards:
        rank, at = found.guards[0]
        summary = (
            f"The kernel writes outside of its tensors, into rank {rank}'s memory at byte {at} of "
            f"the judge's buffers ({where}). Check coordinates and bounds."
        )
        raise StageFailed(stage, "crashed", {"summary": summary, **place, "rank": rank})
