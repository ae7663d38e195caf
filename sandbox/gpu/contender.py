"""One kernel being timed at one shape: its launches are sized, checked and put under the clock."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from problems.description import ShapeInfo
from sandbox.gpu import clock
from sandbox.gpu.check import touched
from sandbox.gpu.clock import Size
from sandbox.gpu.pool import GpuPool
from sandbox.gpu.ranks import RanksCase
from sandbox.gpu.traffic import Counted
from sandbox.stages import StageFailed

RUN_S = 30.0
_WARM_S = 0.2
_QUIET_S = 5e-3
_TRIES = 3
_CLEARED_ROUNDS = 6


class Contender:
    """A kernel on its own runners; raises StageFailed if what it computes is wrong.

    `samples_us` has a time per launch for each round, `counted` the bytes over NVLink.
    """

    def __init__(self, pool: GpuPool, case: RanksCase, shape: ShapeInfo, where: str) -> None:
        self.case = case
        self.samples_us: list[float] = []
        self.counted = Counted(pool)
        self._shape, self._where = shape, where
        self._sets = range(len(case.draws))
        self._graphs = 0

    def ready(self) -> None:
        """Launches every set once, compares, and finds out how often to launch."""
        self.case.poison()
        self.case.launch(list(self._sets))
        self._must_be_right("before it is timed", "wrong_output")
        self._graph, self.size = self._sized()

    def warm(self) -> None:
        """Runs for a while."""
        end = time.monotonic() + _WARM_S
        while time.monotonic() < end:
            self._replay(self._graph, self.size.replays)

    def time(self, number: int, *, quiet: bool = False) -> None:
        """One round: n launches and 2n launches; `quiet` makes sure that nothing goes on after."""
        self.case.poison()
        replays, launches = self.size.replays, self.size.launches
        with self.counted.during(3 * launches):
            once = self._replay(self._graph, replays)
            twice = self._replay(self._graph, 2 * replays)
        self.samples_us.append(clock.per_launch_us(once, twice, launches))
        self._must_be_right(f"round {number}", "race")
        if quiet:
            self._must_be_quiet(self._replay(self._graph, replays))

    def cleared_us(self, limit_us: float) -> float:
        """Microseconds of a launch into outputs cleared just before it, without the clearing.

        The least of several rounds, until one is within the limit: noise alone does not exceed it
        every time.
        """
        launched, cleared = (self._capture(self.size.order(), clear=True, launch=launch)
                             for launch in (True, False))  # fmt: skip
        found = []
        for _ in range(_CLEARED_ROUNDS):
            for graph in (cleared, launched):
                self._replay(graph, 1)
            with_launches = self._replay(launched, self.size.replays)
            self._must_be_right("with outputs cleared before every launch", "race")
            alone = self._replay(cleared, self.size.replays)
            found.append((with_launches - alone) / self.size.launches * 1e6)
            if found[-1] <= limit_us:
                break
        return min(found)

    def latencies(self, order: Sequence[int], replays: int) -> list[list[dict[str, Any]]]:
        """Per replay of launches that each follow a meeting, what every rank's runner answers."""
        graph = self._capture(order, meet=True)
        self._replay(graph, 1)
        fields = {"graph": graph, "times": 1}
        return [self.case.tell_runners("replay", fields, timeout_s=RUN_S) for _ in range(replays)]

    def _must_be_right(self, when: str, status: Literal["wrong_output", "race"]) -> None:
        found = self.case.verify(list(self._sets))
        if found.ok:
            return
        place = {"shape": self._shape.name, "world_size": self.case.world,
                 "dims": dict(self._shape.dims)}  # fmt: skip
        touched(found, "bench", f"{self._where}, {when}", place)
        number, rank, name = found.wrong[0]
        bodies = self.case.tell_workers("diagnose", {"set": number}, timeout_s=120.0)
        told = bodies[rank].get("comparison", {})
        text = str(told.get("summary", f"{name} on rank {rank} is wrong."))
        lead = "Right in the check, wrong in timed launches: " if status == "race" else ""
        raise StageFailed("bench", status, {
            "summary": f"{lead}{text} ({self._where}, {when}.)", **place, "rank": rank,
            "launch": number, "comparison": told,
        })  # fmt: skip

    def _must_be_quiet(self, run_s: float) -> None:
        """Just after an answer: poisons the outputs, waits, and finds them poisoned."""
        self.case.poison()
        time.sleep(2 * run_s + _QUIET_S)
        if all(body.get("poisoned") is True for body in self.case.tell_workers("poisoned")):
            return
        summary = (
            f"Outputs are still written after every rank has said that it is done ({self._where}): "
            "work goes on behind the clock."
        )
        raise StageFailed("bench", "rejected", {"summary": summary, "shape": self._shape.name})

    def _sized(self) -> tuple[str, Size]:
        """A captured graph and how often to replay it, from ever better estimates."""
        order = list(self._sets)
        graph = self._capture(order)
        self._replay(graph, 1)
        estimate = self._replay(graph, 1) / len(order) * 1e6
        for _ in range(_TRIES):
            size = clock.size(estimate, len(order))
            graph = self._capture(size.order())
            self._replay(graph, 1)
            estimate, before = self._replay(graph, size.replays) / size.launches * 1e6, estimate
            if estimate > 0.7 * before:
                break
        return graph, size

    def _capture(
        self, order: Sequence[int], *, meet: bool = False, clear: bool = False, launch: bool = True
    ) -> str:
        self._graphs += 1
        name = f"{self.case.key}-{self._graphs}"
        fields = {"graph": name, "sets": list(order),
                  "meet": meet, "clear": clear, "launch": launch}  # fmt: skip
        self.case.tell_runners("capture", fields, timeout_s=RUN_S)
        return name

    def _replay(self, graph: str, times: int) -> float:
        """Seconds from the first start message to the last answer."""
        fields = {"graph": graph, "times": times}
        return seconds(lambda: self.case.tell_runners("replay", fields, timeout_s=RUN_S))


def seconds(action: Callable[[], object]) -> float:
    """How long something takes by the judge's clock."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
