"""Targets: where a kernel must be fast. A backend and a hardware sheet, e.g. `sim:h200x4`."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from pk_runtime.sheet import Sheet, load_sheet, sheet_names

Backend = Literal["sim", "cuda"]
TimingKind = Literal["simulated", "uncalibrated", "measured"]

BACKENDS: tuple[Backend, ...] = get_args(Backend)


class TargetError(ValueError):
    """A target that is not known; the message lists the known ones."""


@dataclass(frozen=True)
class Target:
    """A backend, the sheet of the machine and how many of its GPUs are used."""

    backend: Backend
    sheet: Sheet
    world_size: int

    def __str__(self) -> str:
        return f"{self.backend}:{self.sheet.name}"

    @property
    def timing_kind(self) -> TimingKind:
        """What a time on this target is."""
        if self.backend == "cuda":
            return "measured"
        return "simulated" if self.sheet.calibrated else "uncalibrated"


def parse_target(text: str) -> Target:
    """Parses "sim:h200x4" or "cuda:h200x4"; TargetError for anything else."""
    known = {f"{backend}:{name}": (backend, name) for backend, name in _known()}
    if text not in known:
        near = difflib.get_close_matches(text, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise TargetError(f"unknown target {text[:80]!r}.{hint} Known targets: {', '.join(known)}")
    backend, name = known[text]
    sheet = load_sheet(name)
    return Target(backend, sheet, sheet.world_size)


def all_targets() -> tuple[Target, ...]:
    """Every target, simulated ones first."""
    return tuple(parse_target(f"{backend}:{name}") for backend, name in _known())


def _known() -> Iterator[tuple[Backend, str]]:
    """Every sheet can be simulated; a machine is measured on only if its sheet was, too."""
    for backend in BACKENDS:
        for name in sheet_names():
            if backend == "sim" or load_sheet(name).calibrated:
                yield backend, name
