"""Measured times of our kernels on real GPUs: the file that predictions are held against.

A measured file is JSON: the machine, the versions and the protocol of runs of
`python3 -m benchmarks.gpu` on it, the sheet that predicts it, whether constants may be fitted to
it, which of its times are superseded, and a row for every (kernel, problem, dims, knobs) of ours.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FORMAT = 2
MACHINE_FIELDS = ("gpus", "world_size", "driver", "cuda", "torch", "nccl", "power_limit_w")

Record = dict[str, Any]


@dataclass(frozen=True)
class MeasuredPoint:
    """The median time of one kernel at one size, microseconds; knobs as given, others default."""

    kernel: str
    problem: str
    dims: dict[str, int]
    knobs: dict[str, int]
    us: float
    us_min: float
    us_max: float
    world_size: int = 4

    @property
    def group(self) -> str:
        """Kernel and size: the points that differ in knobs alone, e.g. "gather M=64,N=1024"."""
        return f"{self.kernel} " + ",".join(f"{k}={v}" for k, v in sorted(self.dims.items()))


@dataclass(frozen=True)
class Superseded:
    """Times that today's kernels no longer take: of which kernels, below how many us, and why."""

    kernels: tuple[str, ...]
    below_us: float
    why: str

    def has(self, point: MeasuredPoint) -> bool:
        """Whether the point's time is no longer that of its kernel."""
        return point.kernel in self.kernels and point.us < self.below_us


@dataclass(frozen=True)
class Measured:
    """What one machine took, and how that was measured."""

    sheet: str  # a shipped one
    about: Record  # date, machine, protocol, clocks
    points: tuple[MeasuredPoint, ...]
    fitted: bool = False  # half of the groups may be fitted to; else every point validates
    superseded: tuple[Superseded, ...] = ()

    @property
    def machine(self) -> str:
        """In words, e.g. "4x H200"."""
        gpus = self.about["machine"]["gpus"]
        return f"{len(gpus)}x {gpus[0].removeprefix('NVIDIA ')}"

    @property
    def current(self) -> tuple[MeasuredPoint, ...]:
        """The points that nothing supersedes."""
        return tuple(p for p in self.points if not any(s.has(p) for s in self.superseded))

    @property
    def fit_groups(self) -> set[str]:
        """Groups that constants may be fitted to; the same whatever is superseded."""
        return split(self.points)[0] if self.fitted else set()


def split(points: Sequence[MeasuredPoint]) -> tuple[set[str], set[str]]:
    """Groups that constants may be fitted to, and groups that validate them.

    The groups of a kernel, in the order of the SHA-256 of their texts, go to the validation set
    and to the fit set by turns, the first to validation: so each kernel is validated, and all
    knob settings of a kernel at one size are on the same side.
    """
    groups: dict[str, set[str]] = {}
    for point in points:
        groups.setdefault(point.kernel, set()).add(point.group)
    fit: set[str] = set()
    validation: set[str] = set()
    for names in groups.values():
        ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
        validation.update(ordered[0::2])
        fit.update(ordered[1::2])
    return fit, validation


def extract(records: Sequence[Record]) -> Measured:
    """The points of ours in records of `benchmarks.gpu`; the first one describes the run.

    Rows of tensors copied to and from symmetric memory and wrong results are left out.
    """
    first = records[0]
    machine = {name: first["machine"][name] for name in MACHINE_FIELDS}
    points = []
    for record in records:
        for row in record["rows"]:
            world = 1 if row["problem"] == "gemm" else record["machine"]["world_size"]
            for c in row["contenders"]:
                if c["kernel"] and c["right"] and not c["staged"]:
                    points.append(
                        MeasuredPoint(
                            *(c["kernel"], row["problem"], row["dims"], c["knobs"]),
                            *(c["us"], c["us_min"], c["us_max"], world),
                        )
                    )
    about = {
        "dates": [record["date"] for record in records],
        "machine": machine,
        "protocol": first["protocol"],
        "rounds": first["rounds"],
        "sm_clocks_mhz": _clocks(records),
    }
    return Measured(_sheet(machine["gpus"]), about, tuple(points))


def _sheet(gpus: Sequence[str]) -> str:
    """The name that a shipped sheet of such a machine has, e.g. "h200x4"."""
    return f"{gpus[0].removeprefix('NVIDIA ').split()[0].lower()}x{len(gpus)}"


def _clocks(records: Sequence[Record]) -> list[int]:
    """Smallest and largest SM clock seen between rows."""
    seen = [
        int(gpu.split(",")[0])
        for record in records
        for sample in record["clocks"]["during"]
        for gpu in sample["gpus"]
        if gpu.split(",")[0].strip().isdecimal()
    ]
    return [min(seen), max(seen)] if seen else []


def write(path: Path, measured: Measured) -> None:
    """Writes the file, a line for every point."""
    head = {
        "format": FORMAT,
        "sheet": measured.sheet,
        "fitted": measured.fitted,
        "superseded": [asdict(entry) for entry in measured.superseded],
        "about": measured.about,
    }
    fields = ",\n".join(f'"{name}": {json.dumps(value, indent=1)}' for name, value in head.items())
    lines = ",\n".join("  " + json.dumps(asdict(point)) for point in measured.points)
    path.write_text(f'{{{fields},\n"points": [\n{lines}\n]}}\n', encoding="utf-8")


def read(path: Path) -> Measured:
    """Reads a measured file; ValueError with the file's name if it is not one."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']!r}; this program reads {FORMAT}")
        points = tuple(MeasuredPoint(**point) for point in record["points"])
        if not points or any(not point.us > 0 for point in points):
            raise ValueError("it has no points, or one without a time")
        superseded = tuple(
            Superseded(tuple(s["kernels"]), s["below_us"], s["why"]) for s in record["superseded"]
        )
        if unused := {k for s in superseded for k in s.kernels} - {p.kernel for p in points}:
            raise ValueError(f"it supersedes points of {', '.join(sorted(unused))} and has none")
        return Measured(record["sheet"], record["about"], points, record["fitted"], superseded)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} is not a measured file: {error!r}") from None
