"""Why one attempt is better than another: knobs, times, and what became busier or idler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from api.cli.formats import knob_changes, microseconds, percent, times
from api.cli.verdict_view import shares_of

# What moved less than this says nothing.
_LEAST_SHARE = 0.01
_LEAST_US = 1.0


def explain_gain(first: Mapping[str, Any], best: Mapping[str, Any]) -> list[str]:
    """Lines that compare two judged attempts (as `GET /v1/jobs/{id}/attempts/{number}` gives them).

    The knobs that differ, the time of each shape that both were timed on, and how the use of each
    resource changed.
    """
    lines = [f"knobs changed: {knob_changes(_knob_changes(first, best))}"]
    if first["verdict"]["candidate"] == best["verdict"]["candidate"]:
        lines.append("it is the same candidate: nothing that was tried beat it")
    before = {timing["shape"]: timing for timing in first["verdict"]["timings"]}
    for timing in best["verdict"]["timings"]:
        if timing["shape"] in before:
            lines += _shape_lines(before[timing["shape"]], timing)
    return lines


def _knob_changes(first: Mapping[str, Any], best: Mapping[str, Any]) -> dict[str, list[Any]]:
    old, new = first["verdict"]["knobs"], best["verdict"]["knobs"]
    names = sorted(old.keys() | new.keys())
    return {
        name: [old.get(name), new.get(name)] for name in names if old.get(name) != new.get(name)
    }


def _shape_lines(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    gain = before["candidate_us"] / after["candidate_us"]
    yield (
        f"{after['shape']}: {microseconds(before['candidate_us'])} -> "
        f"{microseconds(after['candidate_us'])} {after['kind']} ({times(gain)}), speedup over the "
        f"baseline {times(before['speedup'])} -> {times(after['speedup'])}"
    )
    if before["bottleneck"] == after["bottleneck"]:
        yield f"  bottleneck stays {after['bottleneck']}"
    else:
        yield f"  bottleneck {before['bottleneck']} -> {after['bottleneck']}"
    changed = sorted(
        _changes(before, after, "utilization", _LEAST_SHARE),
        key=lambda item: -abs(item[2] - item[1]),
    )
    if changed:
        parts = [f"{name} {percent(old)} -> {percent(new)}" for name, old, new in changed]
        yield f"  busy: {', '.join(parts)}"
    waits = list(_changes(before, after, "exposed_us", _LEAST_US))
    if waits:
        parts = [f"{name} {microseconds(old)} -> {microseconds(new)}" for name, old, new in waits]
        yield f"  exposed: {', '.join(parts)}"


def _changes(
    before: Mapping[str, Any], after: Mapping[str, Any], figure: str, least: float
) -> Iterator[tuple[str, float, float]]:
    """(name, before, after) of the figures that moved by `least` or more."""
    old, new = _figures(before, figure), _figures(after, figure)
    for name, value in new.items():
        if name in old and abs(old[name] - value) >= least:
            yield name, old[name], value


def _figures(timing: Mapping[str, Any], figure: str) -> dict[str, float]:
    found = timing["detail"].get("bottleneck")
    return shares_of(found.get(figure)) if isinstance(found, Mapping) else {}
