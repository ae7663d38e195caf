"""What a timing run tells, as one object: the time, the floor, where the gap between them goes.

The same `Report` is stored with a verdict, answered by the service, printed by the command line and
given to models; `text` is its compact form. docs/report.md explains every number.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, get_args

from pk_runtime.bottleneck import Bottleneck
from pk_runtime.knob_advice import KnobAdvice
from pk_runtime.target import TimingKind

Binding = Literal["compute", "nvlink", "hbm"]

PARTS = (
    *("compute", "hbm", "link", "exposed_communication"),
    *("synchronization", "launch", "tail"),
)
_FIRST_PAID: Mapping[Binding, tuple[str, ...]] = {
    "compute": ("compute", "hbm", "link"),
    "nvlink": ("link", "exposed_communication", "hbm", "compute"),
    "hbm": ("hbm", "compute", "link"),
}
_SUM_SLACK = 1e-6
_SHOWN_KNOBS = 6
_Record = TypeVar("_Record")


class ReportError(ValueError):
    """A stored report that is out of form; the message names the field."""


@dataclass(frozen=True)
class Split:
    """Microseconds by what they were spent on; the parts add up to the whole.

    `hbm` is local memory: HBM and L2 with their latencies and queues. `link` is transfers between
    GPUs while this one still multiplies, `exposed_communication` those after its last
    multiplication. `tail` is work that only a part of the SMs still has.
    """

    compute: float = 0.0
    hbm: float = 0.0
    link: float = 0.0
    exposed_communication: float = 0.0
    synchronization: float = 0.0
    launch: float = 0.0
    tail: float = 0.0

    @property
    def total(self) -> float:
        """The sum of the parts."""
        return math.fsum(getattr(self, part) for part in PARTS)

    def less(self, floor_us: float, binding: Binding) -> "Split":
        """What is left when `floor_us` microseconds of it are the least that must be spent.

        The floor is the time the binding resource needs; it is taken from that resource's own part
        first and, where the critical path spends less on it, from the others in a fixed order: the
        resource was busy meanwhile, behind them. The result adds up to `total - floor_us`; no part
        is negative. ValueError if the floor is not between 0 and the total.
        """
        if not 0 <= floor_us <= self.total * (1 + _SUM_SLACK):
            raise ValueError(f"a floor of {floor_us} us does not fit into {self.total} us")
        parts = {part: getattr(self, part) for part in PARTS}
        owed = floor_us
        order = _FIRST_PAID[binding]
        for part in (*order, *(part for part in PARTS if part not in order)):
            paid = min(owed, parts[part])
            parts[part] -= paid
            owed -= paid
        return Split(**parts)


@dataclass(frozen=True)
class Taxes:
    """The three taxes, in microseconds; they may overlap other work and need not add up.

    `launch` is the time that launches take, `bulk_synchronous` the time in which one of compute
    and communication stands still because the other is not done or a peer is not there,
    `locality` the time HBM needs for bytes beyond those that the operator must move.
    """

    launch: float
    bulk_synchronous: float
    locality: float


@dataclass(frozen=True)
class Report:
    """What is known of one timed shape. Times are microseconds, shares 0 to 1.

    `path` divides the whole time along the critical path, `gap` what of it is above the floor.
    `kind` is `uncalibrated` where the sheet is made of published figures: good for ranking only.
    """

    kind: TimingKind
    target: str
    time_us: float
    floor_us: float
    binding: Binding
    path: Split
    gap: Split
    baseline_us: float
    baseline_taxes: Taxes
    taxes: Taxes
    bottleneck: Bottleneck
    knobs: tuple[KnobAdvice, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        return dataclasses.asdict(self) | {"knobs": [advice.to_json() for advice in self.knobs]}

    @staticmethod
    def from_json(data: object) -> "Report":
        """Reads what `to_json` wrote; ReportError if it is out of form."""
        table = _table(data, "report")
        kind, binding = _text(table, "kind"), _text(table, "binding")
        if kind not in get_args(TimingKind) or binding not in get_args(Binding):
            raise ReportError(f"no report has kind {kind[:40]!r} and binding {binding[:40]!r}")
        knobs = table.get("knobs")
        if not isinstance(knobs, list):
            raise ReportError("knobs must be a list")
        try:
            return Report(
                kind=cast(TimingKind, kind),
                target=_text(table, "target"),
                time_us=_number(table, "time_us"),
                floor_us=_number(table, "floor_us"),
                binding=cast(Binding, binding),
                path=_numbers(Split, table, "path"),
                gap=_numbers(Split, table, "gap"),
                baseline_us=_number(table, "baseline_us"),
                baseline_taxes=_numbers(Taxes, table, "baseline_taxes"),
                taxes=_numbers(Taxes, table, "taxes"),
                bottleneck=Bottleneck.from_json(table.get("bottleneck")),
                knobs=tuple(KnobAdvice.from_json(item) for item in knobs),
            )
        except ReportError:
            raise
        except ValueError as error:
            raise ReportError(str(error)) from None


def stored_report(detail: Mapping[str, Any]) -> Report | None:
    """The report in a timing's detail; None where there is none, or one of another version."""
    try:
        return Report.from_json(detail["report"])
    except (KeyError, ReportError):
        return None


def path_of(run: Mapping[str, Any]) -> Split:
    """The critical path of a timing run, from the engine's report (see sim/path.h).

    The engine walks from the worker that finished last to whatever it waited for, and so on to the
    start, and says what that time was spent on. Two parts are told apart here, by figures of the
    rank on which the path ends. Exposed communication: as much of the link's time as lies between
    the rank's last multiplication and its end. Tail: the average time for which its SMs were done
    while the last one still worked (multiplied, if the kernel does), taken in proportion from
    compute and local memory; from the link too where nothing is multiplied.

    Raises KeyError, TypeError or ValueError if the figures are malformed or do not add up.
    """
    found, launch = run["path"], float(run["launch_us"])
    rank = run["ranks"][int(found["rank"])]
    parts = {name: float(found[f"{name}_us"]) for name in ("compute", "memory", "link")}
    synchronization = float(found["synchronization_us"])
    multiplies = float(rank["flops"]) > 0
    exposed = 0.0
    if multiplies:
        after = max(0.0, float(rank["ended_us"]) - float(rank["last_mma_us"]))
        exposed = min(parts["link"], after)
        parts["link"] -= exposed
        idle = float(rank["last_mma_us"]) - float(rank["mean_last_mma_us"])
        shared = ["compute", "memory"]
    else:
        idle = float(rank["ended_us"]) - float(rank["mean_ended_us"])
        shared = ["compute", "memory", "link"]
    whole = sum(parts[name] for name in shared)
    tail = min(max(0.0, idle), whole)
    for name in shared:
        parts[name] *= 1 - tail / whole if whole else 1.0  # never below 0, however it rounds
    split = Split(
        parts["compute"], parts["memory"], parts["link"], exposed, synchronization, launch, tail
    )
    total = float(run["time_us"])
    if not all(0 <= getattr(split, part) < math.inf for part in PARTS):
        raise ValueError("a part of the critical path is negative or not a number")
    if not math.isclose(split.total, total, rel_tol=_SUM_SLACK):
        raise ValueError(f"the critical path has {split.total} us and the run {total} us")
    return split


def candidate_taxes(
    run: Mapping[str, Any], path: Split, least_hbm_bytes: float, hbm_bytes_per_us: float
) -> Taxes:
    """The taxes of a simulated candidate; `least_hbm_bytes` is what its operator must move.

    Raises KeyError, TypeError or ValueError on malformed figures.
    """
    moved = max(float(rank["hbm_bytes"]) for rank in run["ranks"])
    return Taxes(
        launch=path.launch,
        bulk_synchronous=path.synchronization + path.exposed_communication,
        locality=max(0.0, moved - least_hbm_bytes) / hbm_bytes_per_us,
    )


def text(report: Report, title: str) -> list[str]:
    """The compact form for people and models: at most 16 lines; parts that round to 0 left out."""
    r = report
    kind = "simulated, UNCALIBRATED (good for ranking only)" if r.kind == "uncalibrated" else r.kind
    lines = [
        f"{title} on {r.target}: {r.time_us:.1f} us {kind}",
        f"  PyTorch + NCCL {r.baseline_us:.1f} us, speedup {r.baseline_us / r.time_us:.2f}x; "
        f"floor {r.floor_us:.1f} us ({r.binding} at its peak), gap {r.gap.total:.1f} us:",
        "    " + _ranked(r.gap),
        "  critical path: " + _ranked(r.path),
        "  taxes in us     launch  bulk-synchronous wait  inter-kernel locality",
        "    PyTorch+NCCL" + _tax_row(r.baseline_taxes),
        "    this kernel " + _tax_row(r.taxes),
    ]
    busy = sorted(r.bottleneck.utilization.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in busy)
    lines.append(f"  busy: {shares}; L2 hit rate {100 * r.bottleneck.l2_hit_rate:.0f} %")
    lines.append(f"  bottleneck: {r.bottleneck.name}. {r.bottleneck.why}")
    lines += [f"    knob {advice.text()}" for advice in r.knobs[:_SHOWN_KNOBS]]
    return lines


def brief(report: Report, title: str) -> list[str]:
    """Two lines, for shapes beyond the first few."""
    top = sorted(PARTS, key=lambda part: -getattr(report.gap, part))[:2]
    worst = ", ".join(f"{_words(part)} {getattr(report.gap, part):.1f}" for part in top)
    return [
        f"{title} on {report.target}: {report.time_us:.1f} us {report.kind}, "
        f"{report.baseline_us / report.time_us:.2f}x PyTorch + NCCL, floor {report.floor_us:.1f}",
        f"  bottleneck: {report.bottleneck.name}; largest of the gap: {worst} us",
    ]


def _ranked(split: Split) -> str:
    ranked = sorted(PARTS, key=lambda part: -getattr(split, part))
    shown = [f"{_words(part)} {getattr(split, part):.1f}" for part in ranked]
    return ", ".join(words for words in shown if not words.endswith(" 0.0")) + " us"


def _words(part: str) -> str:
    return part.replace("_", " ")


def _tax_row(taxes: Taxes) -> str:
    return f"{taxes.launch:9.1f}{taxes.bulk_synchronous:23.1f}{taxes.locality:23.1f}"


def _table(data: object, name: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ReportError(f"{name} must be an object, got {type(data).__name__}")
    return data


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str):
        raise ReportError(f"{name} must be text, got {type(value).__name__}")
    return value


def _number(data: Mapping[str, Any], name: str) -> float:
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ReportError(f"{name} must be a finite number")
    return float(value)


def _numbers(kind: type[_Record], data: Mapping[str, Any], name: str) -> _Record:
    table = _table(data.get(name), name)
    fields: Sequence[str] = [f.name for f in dataclasses.fields(cast(Any, kind))]
    return kind(**{field: _number(table, field) for field in fields})
