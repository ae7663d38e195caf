"""The bench stage on GPUs: candidate, incumbent and PyTorch + NCCL by turns in one run.

The judge's own clock decides (sandbox/gpu/clock.py); what runners measure is shown only where it
goes with that clock. Outputs are poisoned before and compared after every round, and at one moment
nobody can foresee it is made sure that nothing writes any more once a rank has said that it is
done. Where the GPUs count what crosses NVLink, the candidate must have moved what it has to.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from pk_runtime.sheet import Sheet
from problems.description import Description, ShapeInfo
from problems.roofline import Roofline, roofline_of
from sandbox.gpu import clock, traffic
from sandbox.gpu.arena import set_bytes
from sandbox.gpu.case import specs_of
from sandbox.gpu.check import failed
from sandbox.gpu.clock import Size
from sandbox.gpu.contender import RUN_S, Contender, seconds
from sandbox.gpu.group import GroupEnded, RunnerGroup
from sandbox.gpu.incumbent import Incumbent
from sandbox.gpu.pool import GpuPool
from sandbox.gpu.ranks import RanksCase
from sandbox.gpu.traffic import Counted
from sandbox.stages import Progress, StageFailed
from sandbox.stages.check import derive
from sandbox.verdict import Timing

PROTOCOL = (
    "throughput: the judge's clock from the first start message to the last answer, graph replays "
    "of n and of 2n launches over rotating sets of tensors, their difference over n, median of "
    "rounds in the order candidate, incumbent if there is one, baseline, then back (ABBA), "
    "confidence interval of the ratios by bootstrap over rounds; latency: all ranks meet on the "
    "device before every launch, maximum over ranks, median over launches; outputs poisoned before "
    "and compared after every round; launches into outputs cleared before each may take no longer"
)
BASELINE = "PyTorch + NCCL (multicast off), measured in the same run, in a CUDA graph"
EAGER_BASELINE = "PyTorch + NCCL (multicast off), measured in the same run, eager: {why}"
ROUNDS = 6
_EAGER_ROUNDS = 3
_LATENCY_LAUNCHES, _LATENCY_REPLAYS = 56, 2
_LEAST_LATENCY_LAUNCHES = 4
_SLACK = 0.999
# How much longer a launch may take when its outputs were cleared just before it: the factor, and
# what nodes of a graph cost that follow nodes of another kind.
_MORE_CLEARED, _MORE_CLEARED_US = 1.25, 3.0
_BASELINE_GRAPH = 48
_MEMORY_BYTES = 8 << 30

Kind = Literal["eager", "graph"]


@dataclass
class _Baseline:
    """Samples of PyTorch + NCCL, and what NVLink carried for it."""

    counted: Counted
    graph: list[float] = field(default_factory=list)
    eager: list[float] = field(default_factory=list)

    @property
    def compared(self) -> list[float]:
        """Those that the candidate is compared with."""
        return self.graph or self.eager


@dataclass(frozen=True)
class Bench:
    """One candidate to be timed on the GPUs of a sheet, beside an incumbent if there is one."""

    pool: GpuPool
    runners: RunnerGroup
    sheet: Sheet
    seed: int
    progress: Progress
    incumbent: RunnerGroup | None = None

    def run(self, description: Description, shapes: Sequence[str]) -> tuple[Timing, ...]:
        """The timing of each shape; StageFailed if a launch is wrong or too good to be true."""
        return tuple(self._shape(description, description.shape(name)) for name in shapes)

    def _shape(self, description: Description, shape: ShapeInfo) -> Timing:
        self.progress("bench", {"shape": shape.name})
        started = time.monotonic()
        size = set_bytes(specs_of(shape.inputs), specs_of(shape.outputs))
        l2_bytes = max(int(a.get("l2_bytes", 0)) for a in self.pool.about()) or (
            self.sheet.chip.l2_bytes
        )
        room = _MEMORY_BYTES // (1 if self.incumbent is None else 2)
        most = max(1, min(64, room // size))
        sets = clock.sets_beyond(l2_bytes, size, least=min(3, most), most=most)
        world = description.world_size
        draws = [derive(self.seed, "bench", shape.name, world, number) for number in range(sets)]
        where = f"timing shape {shape.name} on {world} ranks"

        def contender(runners: RunnerGroup) -> Contender:
            case = RanksCase(self.pool, runners, description, shape, draws, on_device=True)
            return Contender(self.pool, case, shape, where)

        try:
            with ExitStack() as held:
                candidate = contender(self.runners)
                held.enter_context(candidate.case)
                incumbent = None
                if (best := self.incumbent) is not None:
                    incumbent = held.enter_context(
                        Incumbent(lambda: contender(best), self.pool.suspect)
                    )
                timing = _Shape(self, candidate, incumbent, shape, where).time()
        except GroupEnded as ended:
            raise failed("bench", ended, where, shape, world) from ended
        timing.detail["seconds"] = round(time.monotonic() - started, 2)
        return timing


class _Shape:
    """One shape being timed."""

    def __init__(
        self,
        bench: Bench,
        candidate: Contender,
        incumbent: Incumbent | None,
        shape: ShapeInfo,
        where: str,
    ) -> None:
        self._bench, self._candidate, self._incumbent = bench, candidate, incumbent
        self._shape, self._where, self._case = shape, where, candidate.case
        self._sets = range(len(self._case.draws))
        self._set_bytes = set_bytes(specs_of(shape.inputs), specs_of(shape.outputs))
        self._baseline = _Baseline(Counted(bench.pool))
        self._no_graph = ""

    def time(self) -> Timing:
        """Checks, warms up, times and checks again."""
        self._candidate.ready()
        self._candidate.warm()
        clocks = [dict(body.get("clocks", {})) for body in self._bench.pool.ask("clocks")]
        if self._incumbent is not None:
            self._incumbent.ready()
        kinds = self._ready_baseline()
        quiet_round = secrets.randbelow(ROUNDS)
        for number in range(ROUNDS):
            self._round(number, kinds, quiet=number == quiet_round)
        cleared_us = self._cleared()
        latency = self._latencies()
        return self._timing(kinds, latency, cleared_us, clocks)

    def _ready_baseline(self) -> dict[Kind, Size]:
        """Readies the baseline; the kinds there are, with their sizes."""
        pool, case = self._bench.pool, self._case
        pool.ask("baseline", {"case": case.key})
        order = list(self._sets)
        count = len(order)
        self._run_baseline("eager", order, 1)
        eager_us = self._run_baseline("eager", order, 1) / count * 1e6
        graph = max(count, _BASELINE_GRAPH - _BASELINE_GRAPH % count)
        found: dict[Kind, Size] = {"eager": clock.size(eager_us, count, most=graph)}
        sized = clock.size(eager_us, count, most=graph)
        answer = pool.offer("baseline", {"case": case.key, "order": sized.order()})
        if isinstance(answer, str):
            self._no_graph = answer
            return found
        self._run_baseline("graph", sized.order(), 1)
        graph_us = self._run_baseline("graph", sized.order(), sized.replays) / sized.launches * 1e6
        replays = max(1, round(clock.RUN_S * 1e6 / (graph_us * sized.graph)))
        found["graph"] = Size(count, sized.graph, replays)
        return found

    def _run_baseline(self, kind: Kind, order: Sequence[int], times: int) -> float:
        fields = {"case": self._case.key, "kind": kind, "order": list(order), "times": times}
        return seconds(lambda: self._bench.pool.ask("run", fields, timeout_s=RUN_S))

    def _round(self, number: int, kinds: dict[Kind, Size], *, quiet: bool) -> None:
        turns: list[Callable[[], None]] = [
            lambda: self._candidate.time(number, quiet=quiet),
            lambda: self._incumbent.time(number) if self._incumbent is not None else None,
            lambda: self._time_baseline(number, kinds),
        ]
        for turn in turns if number % 2 == 0 else reversed(turns):
            turn()

    def _time_baseline(self, number: int, kinds: dict[Kind, Size]) -> None:
        for kind, chosen in kinds.items():
            if kind == "eager" and "graph" in kinds and number >= _EAGER_ROUNDS:
                continue
            run = partial(self._run_baseline, kind, chosen.order())
            samples = self._baseline.graph if kind == "graph" else self._baseline.eager
            with self._baseline.counted.during(3 * chosen.launches):
                once, twice = run(chosen.replays), run(2 * chosen.replays)
            samples.append(clock.per_launch_us(once, twice, chosen.launches))

    def _cleared(self) -> float:
        """What a launch takes that finds none of its results; StageFailed if that is far more."""
        us = clock.spread(self._candidate.samples_us).median_us
        limit_us = _MORE_CLEARED * us + _MORE_CLEARED_US
        cleared_us = self._candidate.cleared_us(limit_us)
        if cleared_us > limit_us:
            summary = (
                f"A launch takes {cleared_us:.1f} us when its outputs are cleared before it, and "
                f"{us:.1f} us when results of an earlier one are still there: the kernel leaves "
                f"out work that it finds done ({self._where})."
            )
            raise StageFailed("bench", "rejected", {"summary": summary, "shape": self._shape.name})
        return cleared_us

    def _latencies(self) -> dict[str, Any]:
        """Latencies of candidate and baselines; what is not believable is left out, and said."""
        # A captured call of the baseline keeps its outputs until the graph is gone.
        most = max(_LEAST_LATENCY_LAUNCHES, _MEMORY_BYTES // self._set_bytes)
        order = [n % len(self._sets) for n in range(min(_LATENCY_LAUNCHES, most))]
        times = [
            time_us
            for bodies in self._candidate.latencies(order, _LATENCY_REPLAYS)
            for time_us in _slowest(bodies)
        ]
        found: dict[str, Any] = {}
        try:
            measured = clock.spread(times)
            throughput = clock.spread(self._candidate.samples_us).median_us
            if clock.believable(measured.median_us, throughput):
                found["candidate"] = measured.to_json()
            else:
                found["left_out"] = (
                    f"the runners report {measured.median_us:.1f} us, which does not go with "
                    f"{throughput:.1f} us by the judge's clock"
                )
        except clock.ClockError as error:
            found["left_out"] = f"the runners report no usable times: {error}"
        kinds: list[Kind] = ["eager"] if self._no_graph else ["graph", "eager"]
        for kind in kinds:
            fields = {"case": self._case.key, "kind": kind, "order": order}
            answer = self._bench.pool.offer("latency", fields, timeout_s=RUN_S)
            if not isinstance(answer, str):
                found[kind] = clock.spread(_slowest(answer)).to_json()
        return found

    def _timing(
        self,
        kinds: dict[Kind, Size],
        latency: dict[str, Any],
        cleared_us: float,
        clocks: list[dict[str, Any]],
    ) -> Timing:
        shape, sheet = self._shape, self._bench.sheet
        candidate = clock.spread(self._candidate.samples_us)
        compared = clock.spread(self._baseline.compared)
        roof = roofline_of(shape.costs, self._case.description.peak, sheet)
        us = candidate.median_us
        carried = traffic.evidence(
            self._candidate.counted, self._baseline.counted, shape.costs.nvlink_bytes
        )
        self._must_be_physical(us, roof, carried)
        throughput = {"candidate": candidate.to_json()}
        for name in ("graph", "eager"):
            if samples := getattr(self._baseline, name):
                throughput[name] = clock.spread(samples).to_json()
        graphed = "graph" in kinds
        return Timing(
            shape=shape.name,
            kind="measured",
            candidate_us=us,
            baseline_us=compared.median_us,
            speedup=compared.median_us / us,
            roofline_us=roof.us,
            roofline_fraction=roof.us / us,
            bottleneck=roof.binding,
            detail={
                "bottleneck": _bottleneck(us, roof),
                "protocol": PROTOCOL,
                "baseline": BASELINE if graphed else EAGER_BASELINE.format(why=self._no_graph),
                "throughput": throughput,
                "speedup_interval": clock.ratio_interval(
                    self._baseline.compared, self._candidate.samples_us
                ),
                "latency": latency,
                "cleared_us": round(cleared_us, 3),
                **self._beside(),
                "nvlink": carried,
                "sets": self._candidate.size.sets,
                "launches": self._candidate.size.launches,
                "blocks": self._case.blocks,
                "achieved": _achieved(shape, us),
                "roofline": {"binding": roof.binding, "terms_us": dict(roof.terms_us)},
                "clocks": clocks,
                "dims": dict(shape.dims),
            },
        )

    def _beside(self) -> dict[str, Any]:
        if self._incumbent is None:
            return {}
        return {"incumbent": self._incumbent.to_json(self._candidate.samples_us)}

    def _must_be_physical(self, us: float, roof: Roofline, carried: dict[str, Any]) -> None:
        if us < roof.us * _SLACK:
            summary = (
                f"{us:.3f} us is below the roofline of {roof.us:.3f} us, which {roof.binding} "
                f"alone takes ({self._where}): the kernel leaves out work at this shape."
            )
            raise StageFailed("bench", "rejected", {
                "summary": summary, "shape": self._shape.name, "candidate_us": us,
                "roofline_us": roof.us, "binding": roof.binding,
            })  # fmt: skip
        if (missing := traffic.too_little(carried)) is not None:
            summary = f"{missing} ({self._where})."
            raise StageFailed("bench", "rejected", {
                "summary": summary, "shape": self._shape.name, "nvlink": carried,
            })  # fmt: skip


def _bottleneck(us: float, roof: Roofline) -> dict[str, Any]:
    """What the time can be told to consist of without a profile."""
    return {
        "name": roof.binding,
        "why": f"Not profiled. {roof.binding} alone takes {roof.us:.1f} us at its nominal peak; "
        f"the other {us - roof.us:.1f} of {us:.1f} us are launch, waits, work that does not "
        "overlap, or a rate below the peak.",
        "utilization": {name: round(term / us, 4) for name, term in roof.terms_us.items()},
    }


def _achieved(shape: ShapeInfo, us: float) -> dict[str, float]:
    """Rates of the busiest rank, counting only what the operator needs."""
    rates = {
        "tflops": shape.costs.flops / us * 1e-6,
        "nvlink_gb_per_s": shape.costs.nvlink_bytes / us * 1e-3,
        "hbm_gb_per_s": shape.costs.hbm_bytes / us * 1e-3,
    }
    return {name: round(rate, 2) for name, rate in rates.items() if rate > 0}


def _slowest(bodies: Sequence[dict[str, Any]]) -> list[float]:
    """Per launch the maximum over ranks; a single -1 if they do not fit together."""
    try:
        return clock.slowest([_numbers(body.get("times_us")) for body in bodies])
    except clock.ClockError:
        return [-1.0]


def _numbers(value: object) -> list[float]:
    """What a runner reports as times: numbers, else nothing."""
    if not isinstance(value, list) or len(value) > _LATENCY_LAUNCHES:
        return []
    return [float(v) if isinstance(v, int | float) else -1.0 for v in value]
