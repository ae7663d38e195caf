"""The bench stage on GPUs: candidate and PyTorch + NCCL in alternating rounds of one run.

The judge's own clock decides (sandbox/gpu/clock.py); what runners measure is shown only where it
goes with that clock. Outputs are poisoned before and compared after every round, and at one moment
nobody can foresee it is made sure that nothing writes any more once a rank has said that it is
done.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pk_runtime.sheet import Sheet
from problems.description import Description, ShapeInfo
from problems.roofline import Roofline, roofline_of
from sandbox.gpu import clock
from sandbox.gpu.arena import set_bytes
from sandbox.gpu.case import specs_of
from sandbox.gpu.check import failed, touched
from sandbox.gpu.clock import Size
from sandbox.gpu.group import GroupEnded, RunnerGroup
from sandbox.gpu.pool import GpuPool
from sandbox.gpu.ranks import RanksCase
from sandbox.stages import Progress, StageFailed
from sandbox.stages.check import derive
from sandbox.verdict import Timing

PROTOCOL = (
    "throughput: the judge's clock from the first start message to the last answer, graph replays "
    "of n and of 2n launches over rotating sets of tensors, their difference over n, median of "
    "rounds in the order candidate, baseline, baseline, candidate (ABBA), confidence interval of "
    "the ratio by bootstrap over rounds; latency: all ranks meet on the device before every "
    "launch, maximum over ranks, median over launches; outputs poisoned before and compared after "
    "every round"
)
BASELINE = "PyTorch + NCCL (multicast off), measured in the same run, in a CUDA graph"
EAGER_BASELINE = "PyTorch + NCCL (multicast off), measured in the same run, eager: {why}"
ROUNDS = 6
_EAGER_ROUNDS = 3
_LATENCY_LAUNCHES, _LATENCY_REPLAYS = 56, 2
_LEAST_LATENCY_LAUNCHES = 4
_WARM_S = 0.2
_SLACK = 0.999
_RUN_S = 30.0
_BASELINE_GRAPH = 48
_QUIET_S = 5e-3
_MEMORY_BYTES = 8 << 30
_TRIES = 3

Kind = Literal["eager", "graph"]


@dataclass
class _Samples:
    candidate: list[float] = field(default_factory=list)
    graph: list[float] = field(default_factory=list)
    eager: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Bench:
    """One candidate to be timed on the GPUs of a sheet."""

    pool: GpuPool
    runners: RunnerGroup
    sheet: Sheet
    seed: int
    progress: Progress

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
        most = max(1, min(64, _MEMORY_BYTES // size))
        sets = clock.sets_beyond(l2_bytes, size, least=min(3, most), most=most)
        world = description.world_size
        draws = [derive(self.seed, "bench", shape.name, world, number) for number in range(sets)]
        try:
            with RanksCase(
                self.pool, self.runners, description, shape, draws, on_device=True
            ) as case:
                timing = _Shape(self, case, shape).time()
        except GroupEnded as ended:
            where = f"timing shape {shape.name} on {world} ranks"
            raise failed("bench", ended, where, shape, world) from ended
        timing.detail["seconds"] = round(time.monotonic() - started, 2)
        return timing


class _Shape:
    """One shape being timed."""

    def __init__(self, bench: Bench, case: RanksCase, shape: ShapeInfo) -> None:
        self._bench, self._case, self._shape = bench, case, shape
        self._sets = range(len(case.draws))
        self._set_bytes = set_bytes(specs_of(shape.inputs), specs_of(shape.outputs))
        self._samples = _Samples()
        self._no_graph = ""
        self._where = f"timing shape {shape.name} on {case.world} ranks"
        self._graphs = 0

    def time(self) -> Timing:
        """Checks, warms up, times and checks again."""
        self._once_right()
        graph, size = self._sized()
        clocks = self._warm(graph, size)
        baseline = self._ready_baseline()
        quiet_round = secrets.randbelow(ROUNDS)
        for number in range(ROUNDS):
            self._round(number, graph, size, baseline, quiet=number == quiet_round)
        latency = self._latencies()
        return self._timing(size, baseline, latency, clocks)

    def _once_right(self) -> None:
        case = self._case
        case.poison()
        case.launch(list(self._sets))
        self._must_be_right("before it is timed", "wrong_output")

    def _must_be_right(self, when: str, status: Literal["wrong_output", "race"]) -> None:
        found = self._case.verify(list(self._sets))
        if found.ok:
            return
        place = {"shape": self._shape.name, "world_size": self._case.world,
                 "dims": dict(self._shape.dims)}  # fmt: skip
        touched(found, "bench", f"{self._where}, {when}", place)
        number, rank, name = found.wrong[0]
        bodies = self._case.tell_workers("diagnose", {"set": number}, timeout_s=120.0)
        told = bodies[rank].get("comparison", {})
        text = str(told.get("summary", f"{name} on rank {rank} is wrong."))
        lead = "Right in the check, wrong in timed launches: " if status == "race" else ""
        raise StageFailed("bench", status, {
            "summary": f"{lead}{text} ({self._where}, {when}.)", **place, "rank": rank,
            "launch": number, "comparison": told,
        })  # fmt: skip

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

    def _warm(self, graph: str, size: Size) -> list[dict[str, Any]]:
        """Runs for a while; the GPUs' clocks right after that."""
        end = time.monotonic() + _WARM_S
        while time.monotonic() < end:
            self._replay(graph, size.replays)
        return [dict(body.get("clocks", {})) for body in self._bench.pool.ask("clocks")]

    def _capture(self, order: Sequence[int], *, meet: bool = False) -> str:
        self._graphs += 1
        name = f"{self._case.key}-{self._graphs}"
        fields = {"graph": name, "sets": list(order), "meet": meet}
        self._case.tell_runners("capture", fields, timeout_s=_RUN_S)
        return name

    def _replay(self, graph: str, times: int) -> float:
        """Seconds from the first start message to the last answer."""
        return _seconds(
            lambda: self._case.tell_runners(
                "replay", {"graph": graph, "times": times}, timeout_s=_RUN_S
            )
        )

    def _ready_baseline(self) -> dict[Kind, Size]:
        """Readies the baseline; the kinds there are, with their sizes."""
        pool, case = self._bench.pool, self._case
        pool.ask("baseline", {"case": case.key})
        order = list(self._sets)
        count = len(order)
        self._baseline("eager", order, 1)
        eager_us = self._baseline("eager", order, 1) / count * 1e6
        graph = max(count, _BASELINE_GRAPH - _BASELINE_GRAPH % count)
        found: dict[Kind, Size] = {"eager": clock.size(eager_us, count, most=graph)}
        sized = clock.size(eager_us, count, most=graph)
        answer = pool.offer("baseline", {"case": case.key, "order": sized.order()})
        if isinstance(answer, str):
            self._no_graph = answer
            return found
        self._baseline("graph", sized.order(), 1)
        graph_us = self._baseline("graph", sized.order(), sized.replays) / sized.launches * 1e6
        replays = max(1, round(clock.RUN_S * 1e6 / (graph_us * sized.graph)))
        found["graph"] = Size(count, sized.graph, replays)
        return found

    def _baseline(self, kind: Kind, order: Sequence[int], times: int) -> float:
        fields = {"case": self._case.key, "kind": kind, "order": list(order), "times": times}
        return _seconds(lambda: self._bench.pool.ask("run", fields, timeout_s=_RUN_S))

    def _round(
        self, number: int, graph: str, size: Size, baseline: dict[Kind, Size], *, quiet: bool
    ) -> None:
        candidate_first = number % 2 == 0
        if candidate_first:
            self._time_candidate(number, graph, size, quiet=quiet)
        self._time_baseline(number, baseline)
        if not candidate_first:
            self._time_candidate(number, graph, size, quiet=quiet)

    def _time_candidate(self, number: int, graph: str, size: Size, *, quiet: bool) -> None:
        self._case.poison()
        once = self._replay(graph, size.replays)
        twice = self._replay(graph, 2 * size.replays)
        self._samples.candidate.append(clock.per_launch_us(once, twice, size.launches))
        self._must_be_right(f"round {number}", "race")
        if quiet:
            self._must_be_quiet(self._replay(graph, size.replays))

    def _time_baseline(self, number: int, baseline: dict[Kind, Size]) -> None:
        for kind, chosen in baseline.items():
            if kind == "eager" and "graph" in baseline and number >= _EAGER_ROUNDS:
                continue
            once = self._baseline(kind, chosen.order(), chosen.replays)
            twice = self._baseline(kind, chosen.order(), 2 * chosen.replays)
            sample = clock.per_launch_us(once, twice, chosen.launches)
            (self._samples.graph if kind == "graph" else self._samples.eager).append(sample)

    def _must_be_quiet(self, run_s: float) -> None:
        """Just after an answer: poisons the outputs, waits, and finds them poisoned."""
        self._case.poison()
        time.sleep(2 * run_s + _QUIET_S)
        if all(body.get("poisoned") is True for body in self._case.tell_workers("poisoned")):
            return
        summary = (
            f"Outputs are still written after every rank has said that it is done ({self._where}): "
            "work goes on behind the clock."
        )
        raise StageFailed("bench", "rejected", {"summary": summary, "shape": self._shape.name})

    def _latencies(self) -> dict[str, Any]:
        """Latencies of candidate and baselines; what is not believable is left out, and said."""
        # A captured call of the baseline keeps its outputs until the graph is gone.
        most = max(_LEAST_LATENCY_LAUNCHES, _MEMORY_BYTES // self._set_bytes)
        order = [n % len(self._sets) for n in range(min(_LATENCY_LAUNCHES, most))]
        graph = self._capture(order, meet=True)
        self._replay(graph, 1)
        times: list[float] = []
        for _ in range(_LATENCY_REPLAYS):
            bodies = self._case.tell_runners(
                "replay", {"graph": graph, "times": 1}, timeout_s=_RUN_S
            )
            times += _slowest(bodies)
        found: dict[str, Any] = {}
        try:
            measured = clock.spread(times)
            throughput = clock.spread(self._samples.candidate).median_us
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
            answer = self._bench.pool.offer("latency", fields, timeout_s=_RUN_S)
            if not isinstance(answer, str):
                found[kind] = clock.spread(_slowest(answer)).to_json()
        return found

    def _timing(
        self,
        size: Size,
        baseline: dict[Kind, Size],
        latency: dict[str, Any],
        clocks: list[dict[str, Any]],
    ) -> Timing:
        shape, sheet = self._shape, self._bench.sheet
        candidate = clock.spread(self._samples.candidate)
        compared = clock.spread(self._samples.graph or self._samples.eager)
        roof = roofline_of(shape.costs, self._case.description.peak, sheet)
        us = candidate.median_us
        self._must_be_physical(us, roof)
        throughput = {"candidate": candidate.to_json()}
        for name in ("graph", "eager"):
            if samples := getattr(self._samples, name):
                throughput[name] = clock.spread(samples).to_json()
        graphed = "graph" in baseline
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
                    self._samples.graph or self._samples.eager, self._samples.candidate
                ),
                "latency": latency,
                "sets": size.sets,
                "launches": size.launches,
                "blocks": self._case.blocks,
                "achieved": _achieved(shape, us),
                "roofline": {"binding": roof.binding, "terms_us": dict(roof.terms_us)},
                "clocks": clocks,
                "dims": dict(shape.dims),
            },
        )

    def _must_be_physical(self, us: float, roof: Roofline) -> None:
        if us < roof.us * _SLACK:
            summary = (
                f"{us:.3f} us is below the roofline of {roof.us:.3f} us, which {roof.binding} "
                f"alone takes ({self._where}): the kernel leaves out work at this shape."
            )
            raise StageFailed("bench", "rejected", {
                "summary": summary, "shape": self._shape.name, "candidate_us": us,
                "roofline_us": roof.us, "binding": roof.binding,
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


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
