"""What the judge says of one candidate on one target: status, evidence, timings, provenance."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast, get_args

Status = Literal[
    "correct",
    "build_failed",
    "crashed",
    "wrong_output",
    "deadlock",
    "race",
    "timeout",
    "rejected",
    "infra_error",
]
Stage = Literal["scan", "build", "check", "bench", "done"]
TimingKind = Literal["simulated", "uncalibrated", "measured"]
Depth = Literal["quick", "full"]

STATUSES: tuple[Status, ...] = get_args(Status)
STAGES: tuple[Stage, ...] = get_args(Stage)


class VerdictError(ValueError):
    """A stored verdict that is out of form; the message names the field."""


@dataclass(frozen=True)
class Timing:
    """One shape's time, in microseconds. `kind` says whether it was simulated or measured.

    `uncalibrated` is simulated from a sheet of published figures: good for ranking only.

    `speedup` is baseline over candidate, `roofline_fraction` roofline over candidate (at most 1).
    """

    shape: str
    kind: TimingKind
    candidate_us: float
    baseline_us: float
    speedup: float
    roofline_us: float
    roofline_fraction: float
    bottleneck: str
    detail: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The timing as JSON."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Timing":
        """Reads what `to_json` wrote; VerdictError if it is out of form."""
        kind = _text(data, "kind")
        if kind not in get_args(TimingKind):
            raise VerdictError(f"timing kind {kind!r} is none of {', '.join(get_args(TimingKind))}")
        return Timing(
            shape=_text(data, "shape"),
            kind=cast(TimingKind, kind),
            candidate_us=_number(data, "candidate_us"),
            baseline_us=_number(data, "baseline_us"),
            speedup=_number(data, "speedup"),
            roofline_us=_number(data, "roofline_us"),
            roofline_fraction=_number(data, "roofline_fraction"),
            bottleneck=_text(data, "bottleneck"),
            detail=_table(data, "detail"),
        )


@dataclass(frozen=True)
class Verdict:
    """One judgement. `stage` is where it ended: "done" if correct, else the stage that failed.

    `evidence` always has "summary", a paragraph for the candidate's author. `isolation` is the
    capability report of the sandbox, `versions` what is needed to repeat the judgement, `candidate`
    the candidate's digest, `source` that of its files alone, `knobs` every knob's value; `shapes`
    were to be timed, `labels` are honest practices worth knowing of (`sandbox.labels`). The `seed`
    drew inputs and schedules; it was secret until now.
    """

    status: Status
    stage: Stage
    problem: str
    target: str
    language: str
    candidate: str
    depth: Depth
    seed: int
    evidence: dict[str, Any]
    timings: tuple[Timing, ...] = ()
    knobs: dict[str, int] = field(default_factory=dict)
    isolation: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    source: str = ""
    shapes: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def correct(self) -> bool:
        """Whether every check passed."""
        return self.status == "correct"

    @property
    def summary(self) -> str:
        """The paragraph that says why."""
        return str(self.evidence["summary"])

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON, without NaN or infinity."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        data["timings"] = [timing.to_json() for timing in self.timings]
        return cast(dict[str, Any], plain(data))

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Verdict":
        """Reads what `to_json` wrote; VerdictError if it is out of form."""
        status, stage, depth = (_text(data, name) for name in ("status", "stage", "depth"))
        if status not in STATUSES or stage not in STAGES or depth not in get_args(Depth):
            raise VerdictError(
                f"no verdict has status {status!r}, stage {stage!r}, depth {depth!r}"
            )
        evidence = _table(data, "evidence")
        _text(evidence, "summary")
        timings = data.get("timings")
        if not isinstance(timings, list) or not isinstance(data.get("seed"), int):
            raise VerdictError("a verdict has a list of timings and an integer seed")
        return Verdict(
            status=status,
            stage=stage,
            problem=_text(data, "problem"),
            target=_text(data, "target"),
            language=_text(data, "language"),
            candidate=_text(data, "candidate"),
            depth=cast(Depth, depth),
            seed=data["seed"],
            evidence=evidence,
            timings=tuple(Timing.from_json(item) for item in timings),
            knobs=_table(data, "knobs"),
            isolation=_table(data, "isolation"),
            versions=_table(data, "versions"),
            source=_text({"source": "", **data}, "source"),
            shapes=tuple(map(str, data.get("shapes") or ())),
            labels=tuple(map(str, data.get("labels") or ())),
        )


def plain(value: Any) -> Any:
    """`value` as JSON takes it: tuples and sets as lists, NaN and infinity as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise VerdictError(f"{name} must be text, got {type(value).__name__}")
    return value


def _number(data: Mapping[str, Any], name: str) -> float:
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise VerdictError(f"{name} must be a number, got {type(value).__name__}")
    return float(value)


def _table(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name)
    if not isinstance(value, dict):
        raise VerdictError(f"{name} must be an object, got {type(value).__name__}")
    return value
