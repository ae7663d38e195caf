"""A verdict as a person reads it: what, why, how fast, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from api.cli.console import safe, stdout
from api.cli.formats import knobs, microseconds, percent, status_style, times

if TYPE_CHECKING:
    from rich.table import Table

_EVIDENCE_LINES = 60
_TEXT_CHARS = 2000
_LEAST_US = 0.5


def print_verdict(verdict: Mapping[str, Any]) -> None:
    """Print a verdict (as `Verdict.to_json` gives it) on stdout."""
    from rich.text import Text

    out = stdout()
    head = Text(verdict["status"], style=status_style(verdict["status"]))
    head.append(f"  {safe(verdict['problem'])} on {verdict['target']}", style="default")
    if verdict["status"] != "correct":
        head.append(f", in stage {verdict['stage']}", style="default")
    out.print(head)
    out.print(safe(verdict["evidence"]["summary"]), markup=False)
    if verdict["timings"]:
        out.print()
        out.print(timings_table(verdict["timings"]))
        for timing in verdict["timings"]:
            for line in bottleneck_lines(timing):
                out.print(safe(line), markup=False)
    if verdict["status"] != "correct":
        for line in evidence_lines(verdict["evidence"]):
            out.print(safe(line), markup=False)
    out.print()
    backend = verdict["isolation"].get("backend", "unknown")
    isolated = verdict["isolation"].get("isolated")
    confined = f"isolated by {backend}" if isolated else "NOT isolated"
    out.print(
        f"{verdict['language']}, knobs {safe(knobs(verdict['knobs']))}; "
        f"{verdict['depth']} check, seed {verdict['seed']}; {confined}",
        markup=False,
    )


def timings_table(timings: list[dict[str, Any]]) -> Table:
    """The times of each shape against baseline and roofline."""
    from rich.table import Table
    from rich.text import Text

    kind = timings[0]["kind"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("shape", no_wrap=True)
    for title in (f"time ({kind})", f"baseline ({kind})", "speedup", "roofline", "of roofline"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("bottleneck", no_wrap=True)
    for timing in timings:
        cells = (
            timing["shape"],
            microseconds(timing["candidate_us"]),
            microseconds(timing["baseline_us"]),
            times(timing["speedup"]),
            microseconds(timing["roofline_us"]),
            percent(timing["roofline_fraction"]),
            timing["bottleneck"],
        )
        table.add_row(*(Text(safe(cell)) for cell in cells))
    return table


def bottleneck_lines(timing: Mapping[str, Any]) -> list[str]:
    """Why the bottleneck is what it is, and how busy each resource was, busiest first."""
    found = timing["detail"].get("bottleneck")
    if not isinstance(found, Mapping):
        return []
    lines = [f"  {timing['shape']}: {found['why']}"] if found.get("why") else []
    shares = shares_of(found.get("utilization"))
    if shares:
        ranked = sorted(shares.items(), key=lambda item: -item[1])
        lines.append("    busy: " + ", ".join(f"{name} {percent(v)}" for name, v in ranked))
    exposed = {name: v for name, v in shares_of(found.get("exposed_us")).items() if v >= _LEAST_US}
    if exposed:
        parts = [f"{name} {microseconds(value)}" for name, value in exposed.items()]
        lines.append("    exposed time: " + ", ".join(parts))
    return lines


def shares_of(value: Any) -> dict[str, float]:
    """The numbers of a mapping; what is no number is left out."""
    items = value.items() if isinstance(value, Mapping) else ()
    return {str(name): float(v) for name, v in items if isinstance(v, int | float)}


def evidence_lines(evidence: Mapping[str, Any]) -> list[str]:
    """The evidence beside its summary, shortened to a screenful."""
    lines = list(_tree({name: value for name, value in evidence.items() if name != "summary"}, 0))
    if len(lines) > _EVIDENCE_LINES:
        more = len(lines) - _EVIDENCE_LINES
        lines = [*lines[:_EVIDENCE_LINES], f"({more} more lines; --json prints everything)"]
    return ["", "evidence:", *lines] if lines else []


def _tree(value: Any, depth: int) -> Iterator[str]:
    pad = "  " * (depth + 1)
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if _is_short(inner):
                yield f"{pad}{name}: {_short(inner)}"
            elif inner not in ({}, []):
                yield f"{pad}{name}:"
                yield from _tree(inner, depth + 1)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, Mapping) and "message" in item and "file" in item:
                yield pad + _diagnostic(item)
            elif _is_short(item):
                yield f"{pad}- {_short(item)}"
            else:
                first, *rest = list(_tree(item, depth + 1)) or [""]
                yield f"{pad}- {first.strip()}"
                yield from rest
    else:
        for line in str(value)[:_TEXT_CHARS].splitlines():
            yield pad + line


def _diagnostic(item: Mapping[str, Any]) -> str:
    where = ":".join(str(item[name]) for name in ("file", "line", "column") if item.get(name))
    return f"{where}: {item.get('severity', 'error')}: {item['message']}"


def _is_short(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, int | float) for item in value) and len(value) <= 16
    return not isinstance(value, Mapping) and "\n" not in str(value)


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    return str(value)[:_TEXT_CHARS]
