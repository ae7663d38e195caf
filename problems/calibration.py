"""What separates honest rounding from mistakes, problem by problem of the catalogue.

`catalogue/calibration.json` has, by slug and check shape, what the task lint measured: which part
of the rule set the limits, how much of them honest variants use, the gap and the signal.
`python3 -m benchmarks.calibration` writes it. A custom problem's are in the lint report that is
stored with it.
"""

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from problems.lint.noise import Noise
from problems.lint.report import LintReport

FILE = Path(__file__).parent / "catalogue" / "calibration.json"


@dataclass(frozen=True)
class Calibration:
    """The worst of a problem's shapes; see `LintReport`. `limits` are what set the limits."""

    gap: float
    signal: float
    noise: Mapping[str, Noise]
    limits: tuple[str, ...] = ()

    @classmethod
    def worst(cls, reports: Iterable[LintReport], limits: Iterable[str] = ()) -> "Calibration":
        """The least gap and signal and the most noise of several reports."""
        gap, signal, noise = math.inf, math.inf, dict[str, Noise]()
        for report in reports:
            gap, signal = min(gap, report.gap), min(signal, report.signal)
            for name, heard in report.noise.items():
                noise[name] = noise.get(name, heard).most(heard)
        return cls(gap, signal, noise, tuple(sorted(set(limits))))


@functools.cache
def stored() -> Mapping[str, Mapping[str, Any]]:
    """The file's entries by slug."""
    entries: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return entries


def calibration_of(slug: str) -> Calibration | None:
    """What the file says of a problem; None if it has no such problem."""
    known = stored().get(slug)
    if known is None:
        return None
    shapes = known["shapes"].values()
    reports = [LintReport.from_json({"ok": True, "checks": 0, "findings": [], **s}) for s in shapes]
    return Calibration.worst(reports, (name for shape in shapes for name in shape["limits"]))
