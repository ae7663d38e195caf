"""The bench stage on simulated targets: predicted time, baseline and roofline of each shape.

Timing mode computes nothing, so nothing can be compared there. Three things keep the times honest:
none may be below the roofline, the run must do at least the work that the operator needs, and it
must do what the kernel does where it is compared (`sandbox.stages.demand`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pk_runtime.baseline import baseline_taxes, baseline_us, source
from pk_runtime.candidate import Candidate, declared_knobs, resolved_knobs
from pk_runtime.knob_advice import advice
from pk_runtime.report import Report, candidate_taxes
from pk_runtime.simulator import COMPUTE_SMS, Simulator, TensorSpec, TimingRun
from pk_runtime.target import Target
from pk_runtime.trace import Trace, write_chrome
from problems.description import Description, ShapeInfo
from problems.roofline import Roofline, roofline_of
from sandbox.stages import Progress, StageFailed
from sandbox.stages.demand import (
    EQUAL_SHARE,
    SAME_SHARE,
    figures,
    grows_less,
    less_work,
    number,
)
from sandbox.stages.diagnosis import bounded, failure
from sandbox.verdict import Timing

# The engine counts in floating point, and rounds transfers to whole tiles only upwards.
_SLACK = 0.999
_WALL_S = 60.0


@dataclass(frozen=True)
class Bench:
    """One program, built from `candidate`, to be timed on one target.

    `compared` is what each rank asked for at the shapes that the check stage compared, by name.
    """

    program: Path
    candidate: Candidate
    simulator: Simulator
    target: Target
    progress: Progress
    compared: Mapping[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)
    trace: Path | None = None

    def run(self, description: Description, shapes: Sequence[str]) -> tuple[Timing, ...]:
        """The timing of each shape; StageFailed if a run fails or is too good to be true.

        With `trace`, the timelines of all shapes are written there as Chrome trace events, also
        those before a failure.
        """
        smaller = self._smaller(description)
        timelines: dict[str, Trace] = {}
        try:
            return tuple(
                self._shape(description, description.shape(name), smaller, timelines)
                for name in shapes
            )
        finally:
            if self.trace is not None:
                write_chrome(self.trace, timelines)

    def _smaller(self, description: Description) -> tuple[ShapeInfo, TimingRun]:
        """The largest check shape, timed; those compared must do there what they did."""
        checks = [shape for shape in description.shapes if shape.kind == "check"]
        runs = {}
        for shape in checks:
            if shape.name not in self.compared and shape is not checks[-1]:
                continue
            run = runs[shape.name] = self._timed(shape, description.world_size)
            if shape.name in self.compared:
                self._must_do_the_same(shape, description.world_size, run)
        return checks[-1], runs[checks[-1].name]

    def _must_do_the_same(self, shape: ShapeInfo, world_size: int, run: TimingRun) -> None:
        """With all SMs, and with those of the run that was compared."""
        few = self._timed(shape, world_size, COMPUTE_SMS)
        for timed, share in ((few, EQUAL_SHARE), (run, SAME_SHARE)):
            missing = less_work(self.compared[shape.name], figures(timed.diagnosis), share)
            where = f"timing shape {shape.name} on {world_size} ranks"
            _must_be_none(missing, where, {"shape": shape.name})

    def _timed(
        self,
        shape: ShapeInfo,
        world_size: int,
        compute_sms: int | None = None,
        timelines: dict[str, Trace] | None = None,
    ) -> TimingRun:
        run = self.simulator.timing(
            self.program,
            inputs=_specs(shape.inputs),
            outputs=_specs(shape.outputs),
            world_size=world_size,
            sheet=self.target.sheet,
            compute_sms=compute_sms,
            wall_s=_WALL_S,
            trace=self.trace is not None and timelines is not None,
        )
        if run.timeline is not None and timelines is not None:
            timelines[f"{shape.name} {self.target.timing_kind}"] = run.timeline
        where = f"timing shape {shape.name} on {world_size} ranks"
        if run.outcome != "finished":
            status, evidence = failure(run.outcome, run.diagnosis, where)
            raise StageFailed("bench", status, {**evidence, "shape": shape.name})
        return run

    def _shape(
        self,
        description: Description,
        shape: ShapeInfo,
        smaller: tuple[ShapeInfo, TimingRun],
        timelines: dict[str, Trace],
    ) -> Timing:
        self.progress("bench", {"shape": shape.name})
        run = self._timed(shape, description.world_size, timelines=timelines)
        where = f"timing shape {shape.name} on {description.world_size} ranks"
        roof = roofline_of(shape.costs, description.peak, self.target.sheet)
        self._must_be_physical(run, shape, roof, where)
        before, small = smaller
        if before.costs.nvlink_bytes > 0:
            factor = shape.costs.nvlink_bytes / before.costs.nvlink_bytes
            missing = grows_less(small.diagnosis, run.diagnosis, factor, description.world_size)
            _must_be_none(missing, where, {"shape": shape.name, "candidate_us": run.time_us})
        report = self._report(run, shape, roof)
        baseline = report.baseline_us
        return Timing(
            shape=shape.name,
            kind=self.target.timing_kind,
            candidate_us=run.time_us,
            baseline_us=baseline,
            speedup=baseline / run.time_us,
            roofline_us=roof.us,
            roofline_fraction=roof.us / run.time_us,
            bottleneck=report.bottleneck.name,
            detail={
                "bottleneck": bounded(report.bottleneck.to_json()),
                "report": bounded(report.to_json()),
                "roofline": {"binding": roof.binding, "terms_us": dict(roof.terms_us)},
                "baseline": source(self.target.sheet),
                "dims": dict(shape.dims),
            },
        )

    def _report(self, run: TimingRun, shape: ShapeInfo, roof: Roofline) -> Report:
        sheet, costs = self.target.sheet, shape.costs
        assert run.bottleneck is not None  # of every run that finished
        assert run.path is not None
        knobs = declared_knobs(self.candidate.source)
        return Report(
            kind=self.target.timing_kind,
            target=str(self.target),
            time_us=run.time_us,
            floor_us=roof.us,
            binding=roof.binding,
            path=run.path,
            gap=run.path.less(min(roof.us, run.time_us), roof.binding),
            baseline_us=baseline_us(costs.baseline, sheet),
            baseline_taxes=baseline_taxes(costs.baseline, costs.hbm_bytes, sheet),
            taxes=candidate_taxes(
                run.diagnosis, run.path, costs.hbm_bytes, sheet.simulator.hbm_bytes_per_us
            ),
            bottleneck=run.bottleneck,
            knobs=advice(run.bottleneck.name, knobs, resolved_knobs(self.candidate)),
        )

    def _must_be_physical(
        self, run: TimingRun, shape: ShapeInfo, roof: Roofline, where: str
    ) -> None:
        """Refuses a time below the roofline, and a run that leaves out work."""
        evidence: dict[str, Any] = {
            "shape": shape.name,
            "candidate_us": run.time_us,
            "roofline_us": roof.us,
            "binding": roof.binding,
        }
        if run.time_us < roof.us * _SLACK:
            summary = (
                f"{run.time_us:.3f} us is below the roofline of {roof.us:.3f} us, which "
                f"{roof.binding} alone takes ({where}): the kernel leaves out work at this shape."
            )
            raise StageFailed("bench", "rejected", {"summary": summary, **evidence})
        for name, done, needed in _work(run.diagnosis, shape):
            if done < needed * _SLACK:
                summary = (
                    f"At {where} the kernel does {done:.4g} {name} on its busiest rank, and the "
                    f"operator needs {needed:.4g}: it leaves out work at this shape."
                )
                raise StageFailed("bench", "rejected", {
                    "summary": summary, **evidence, "work": name, "done": done, "needed": needed,
                })  # fmt: skip


def _must_be_none(missing: str | None, where: str, evidence: dict[str, Any]) -> None:
    if missing is not None:
        summary = f"At {where} {missing}: the kernel leaves out work."
        raise StageFailed("bench", "rejected", {"summary": summary, **evidence})


def _work(report: Mapping[str, Any], shape: ShapeInfo) -> list[tuple[str, float, float]]:
    """(what, amount done, least amount) of the busiest rank, as the engine counted it."""
    ranks = [rank for rank in report.get("ranks", ()) if isinstance(rank, Mapping)]
    links = ("link_out_bytes", "link_in_bytes")
    moved = max((number(rank.get(name)) for rank in ranks for name in links), default=0.0)
    flops = max((number(rank.get("flops")) for rank in ranks), default=0.0)
    memory = max((number(rank.get("hbm_bytes")) for rank in ranks), default=0.0)
    wanted = shape.costs.baseline.gemm
    needed = 0.0 if wanted is None else min(shape.costs.flops, 2.0 * math.prod(wanted))
    return [
        ("bytes over NVLink", moved, shape.costs.nvlink_bytes),
        ("floating-point operations", flops, needed),
        ("bytes of device memory", memory, shape.costs.hbm_bytes),
    ]


def _specs(specs: Mapping[str, Any]) -> list[TensorSpec]:
    return [TensorSpec(name, spec.shape, spec.dtype) for name, spec in specs.items()]
