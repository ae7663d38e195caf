"""What the simulator reports of a run, as evidence. The report comes from an untrusted process."""

from collections.abc import Mapping
from typing import Any

from pk_runtime.simulator import Outcome
from sandbox.verdict import Status, plain

STATUS_OF: Mapping[Outcome, Status] = {
    "deadlock": "deadlock",
    "fault": "crashed",
    "timeout": "timeout",
    "dirty": "race",
    "race": "race",
}
_NEXT: Mapping[Outcome, str] = {
    "deadlock": (
        "Look for a signal that is never sent, a wait with a wrong slot or count, or roles that "
        "loop over different numbers of tasks."
    ),
    "fault": "The place says which role and block; the message says which limit was broken.",
    "timeout": "Look for a loop without end; every role must come to its end in every launch.",
    "dirty": "Signal each counter exactly as often per launch as setup() declares.",
    "race": (
        "Two accesses to the same memory that nothing orders; the result may be right here and "
        "wrong on another machine or day. Let the role that makes the first one signal after it, "
        "and the role that makes the second one, or one that hands it the work through a ring, "
        "wait for that signal."
    ),
}
_MAX_TEXT = 2000
_MAX_ITEMS = 64
_MAX_DEPTH = 6


def failure(
    outcome: Outcome, report: Mapping[str, Any], where: str
) -> tuple[Status, dict[str, Any]]:
    """Status and evidence of a run that did not finish; `where` names shape, ranks and schedule."""
    status = STATUS_OF[outcome]
    clean = bounded(report)
    summary = str(clean.pop("summary", "")).strip() or f"the run ended in a {outcome}"
    clean.pop("outcome", None)
    if isinstance(cause := clean.get("cause"), str) and cause:
        summary += f". This is a {clean.get('class')}: {cause}"
    waits = clean.pop("waits", None)
    evidence = {"summary": f"{summary} ({where}). {_NEXT[outcome]}", **clean}
    if isinstance(waits, list) and waits:
        evidence["waits"] = waits
    return status, evidence


def bounded(value: Any, depth: int = _MAX_DEPTH) -> Any:
    """`value` as JSON of limited size and printable text, whatever the process wrote."""
    if isinstance(value, Mapping):
        items = list(value.items())[:_MAX_ITEMS] if depth else []
        return {_printable(str(key))[:80]: bounded(item, depth - 1) for key, item in items}
    if isinstance(value, list | tuple):
        return [bounded(item, depth - 1) for item in value[:_MAX_ITEMS]] if depth else []
    if isinstance(value, str):
        return _printable(value)[:_MAX_TEXT]
    if isinstance(value, bool | float) or value is None:
        return plain(value)
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else str(value)[:40]
    return _printable(str(value))[:_MAX_TEXT]


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text[: 2 * _MAX_TEXT])
