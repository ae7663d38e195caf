"""Measured times of our kernels on real GPUs: the file that predictions are held against.

A measured file is JSON: the machine, the versions and the protocol of one run of
`python3 -m benchmarks.gpu`, and a row for every (kernel, problem, dims, knobs) of ours.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
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
class Measured:
    """What one machine took, and how that was measured."""

    about: Record  # date, machine, protocol, clocks
    points: tuple[MeasuredPoint, ...]


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
    return Measured(about, tuple(points))


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
    lines = ",\n".join("  " + json.dumps(asdict(point)) for point in measured.points)
    about = json.dumps(measured.about, indent=1)
    path.write_text(
        f'{{"format": {FORMAT},\n"about": {about},\n"points": [\n{lines}\n]}}\n', encoding="utf-8"
    )


def read(path: Path) -> Measured:
    """Reads a measured file; ValueError with the file's name if it is not one."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']!r}; this program reads {FORMAT}")
        points = tuple(MeasuredPoint(**point) for point in record["points"])
        if not points or any(not point.us > 0 for point in points):
            raise ValueError("it has no points, or one without a time")
        return Measured(record["about"], points)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path.name} is not a measured file: {error!r}") from None
