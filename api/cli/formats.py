"""Numbers and words as people read them on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNKNOWN = "-"

STATUS_STYLES = {"correct": "bold green", "pending": "dim italic", "infra_error": "bold yellow"}


def microseconds(value: float | None) -> str:
    """A time, three digits or whole microseconds."""
    if value is None:
        return UNKNOWN
    return f"{value:.0f} us" if value >= 100 else f"{value:.3g} us"


def timed(value: float | None, kind: str | None) -> str:
    """A time with the word that says whether it is simulated or measured."""
    return UNKNOWN if value is None else f"{microseconds(value)} {kind}"


def times(value: float | None) -> str:
    """A speedup."""
    return UNKNOWN if value is None else f"{value:.3f}x"


def percent(value: float | None) -> str:
    """A share of 1."""
    return UNKNOWN if value is None else f"{value * 100:.0f} %"


def knobs(values: Mapping[str, Any]) -> str:
    """Knob values on one line."""
    return " ".join(f"{name}={value}" for name, value in values.items()) or "defaults"


def knob_changes(changes: Mapping[str, Any]) -> str:
    """`[before, after]` pairs on one line."""
    return ", ".join(f"{name} {old} -> {new}" for name, (old, new) in changes.items()) or "none"


def status_style(status: str) -> str:
    """The rich style of a verdict's status."""
    return STATUS_STYLES.get(status, "bold red")
