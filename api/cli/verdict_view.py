"""A verdict as a person reads it: what, why, how fast, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from api.cli.console import safe, stdout
from api.cli.formats import status_style

if TYPE_CHECKING:
    from sandbox.verdict import Verdict

_EVIDENCE_LINES = 60
_TEXT_CHARS = 2000
_TOLD = ("summary", "diagnostics", "violations", "waits", "seconds")


def print_verdict(verdict: Verdict) -> None:
    """Print a verdict on stdout: its lines, and what evidence of a failure they leave out."""
    from rich.text import Text

    from sandbox.explain import explain

    out = stdout()
    first, *lines = explain(verdict)
    out.print(Text(safe(first), style=status_style(verdict.status)))
    if not verdict.correct:
        lines += evidence_lines(verdict.evidence)
    for line in lines:
        out.print(safe(line), markup=False)


def shares_of(value: Any) -> dict[str, float]:
    """The numbers of a mapping; what is no number is left out."""
    items = value.items() if isinstance(value, Mapping) else ()
    return {str(name): float(v) for name, v in items if isinstance(v, int | float)}


def evidence_lines(evidence: Mapping[str, Any]) -> list[str]:
    """The evidence that `sandbox.explain` does not tell, shortened to a screenful."""
    left = {name: value for name, value in evidence.items() if name not in _TOLD}
    lines = list(_tree(left, 0))
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
