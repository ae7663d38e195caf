"""How the runners of a candidate ended, as a status and evidence.

Everything that a runner says is bounded and made printable before it is used. A record is what a
kernel leaves when it gives up: who waited for what, or which tile was out of range, in the words of
the simulator's reports.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sandbox.stages.diagnosis import bounded
from sandbox.verdict import Status

Ended = Literal["answered", "failed", "died", "late"]

# Errors of a kernel that broke a rule of the machine, whatever its peers say they wait for.
_CRASHES = (
    "ILLEGAL_ADDRESS",
    "MISALIGNED_ADDRESS",
    "INVALID_ADDRESS_SPACE",
    "INVALID_PC",
    "ILLEGAL_INSTRUCTION",
    "HARDWARE_STACK_ERROR",
    "OUT_OF_MEMORY",
)
_WHO = re.compile(
    r"rank (?P<rank>\d+) block (?P<block>\d+) (?P<role>\w+)(?: \(launch (?P<launch>\d+)\))?"
    r"(?P<rest> waits for .*|: .*)",
    re.DOTALL,
)
_SLOT = re.compile(r" waits for (?P<what>[\w ]+? '[^']*')(?: slot (?P<slot>\d+))?")
_COUNTS = re.compile(r"expected (?P<expected>\d+), seen (?P<seen>\d+)")
_MOST_RECORDS = 64
_NEXT = {
    "deadlock": (
        "Look for a signal that is never sent, a wait with a wrong slot or count, or roles that "
        "loop over different numbers of tasks."
    ),
    "crashed": "Check coordinates against the layout's tiles_down() and tiles_across().",
    "timeout": "Look for a loop without end; every role must come to its end in every launch.",
}


@dataclass(frozen=True)
class Outcome:
    """How one rank ended a command. `reports` are its kernel's records in words."""

    rank: int
    ended: Ended
    error: str = ""
    reports: tuple[str, ...] = ()
    refused: bool = False  # setup() or the launch refused; nothing ran
    said: str = ""  # the end of what it wrote to stderr
    body: dict[str, Any] = field(default_factory=dict)


def diagnose(outcomes: Sequence[Outcome], where: str) -> tuple[Status, dict[str, Any]]:
    """Status and evidence of a command that not every rank answered; `where` says what ran."""
    records = [record for outcome in outcomes for record in map(read, outcome.reports)]
    records = records[:_MOST_RECORDS]
    refused = next((outcome for outcome in outcomes if outcome.refused), None)
    if refused is not None:
        text = clean(refused.error) or "the kernel cannot be bound"
        return "crashed", {"summary": f"{_sentence(text)} ({where}.)", "rank": refused.rank}
    broken = [record for record in records if record["kind"] == "rule"]
    if broken:
        first = broken[0]
        more = f" {len(broken) - 1} more records like it." if len(broken) > 1 else ""
        summary = f"{_sentence(first['text'])}{more} ({where}.) {_NEXT['crashed']}"
        return "crashed", {"summary": summary, **_place(first), "records": _texts(records)}
    crashed = [o for o in outcomes if o.ended == "failed" and _is_crash(o.error)]
    waits = [record for record in records if record["kind"] == "wait"]
    died = [o for o in outcomes if o.ended == "died"]
    if crashed or (died and not waits):
        return "crashed", _crash((crashed or died)[0], waits, where)
    if waits:
        return "deadlock", _deadlock(outcomes, waits, where)
    failed = [o for o in outcomes if o.ended == "failed"]
    if failed:
        return "crashed", _crash(failed[0], waits, where)
    late = ", ".join(str(o.rank) for o in outcomes if o.ended == "late")
    summary = (
        f"Rank {late} did not come to an end, and no wait ran out either: the ranks were stopped "
        f"({where}). {_NEXT['timeout']}"
    )
    return "timeout", {"summary": summary, "late_ranks": [o.rank for o in outcomes
                                                           if o.ended == "late"]}  # fmt: skip


def read(report: object) -> dict[str, Any]:
    """One record as fields: kind "wait" or "rule", text, and where it is known who and for what."""
    text = clean(report)
    found = _WHO.match(text)
    if found is None:
        return {"kind": "rule" if "out of range" in text else "wait", "text": text}
    record: dict[str, Any] = {"text": text, "kind": "wait"}
    for name in ("rank", "block", "launch"):
        if found[name] is not None:
            record[name] = int(found[name])
    record["role"] = found["role"]
    rest = found["rest"]
    if not rest.startswith(" waits for "):
        return {**record, "kind": "rule"}
    if slot := _SLOT.match(rest):
        record["signal"] = slot["what"]
        if slot["slot"] is not None:
            record["slot"] = int(slot["slot"])
    else:
        record["signal"] = rest.removeprefix(" waits for ").split(",")[0]
    if counts := _COUNTS.search(rest):
        record |= {name: int(counts[name]) for name in ("expected", "seen")}
    return record


def clean(text: object) -> str:
    """Printable text of bounded size."""
    return str(bounded(str(text))).strip()


def _deadlock(
    outcomes: Sequence[Outcome], waits: Sequence[dict[str, Any]], where: str
) -> dict[str, Any]:
    # A wait for a peer to enter or leave follows from another one, as does a role that waits for
    # its own block's ring: the signals of the author come first.
    ordered = sorted(waits, key=_weight)
    first = ordered[0]
    others = f" {len(waits) - 1} more waits ran out." if len(waits) > 1 else ""
    late = [o.rank for o in outcomes if o.ended == "late"]
    stuck = f" Rank {', '.join(map(str, late))} never ended and was stopped." if late else ""
    summary = f"{_sentence(first['text'])}{others}{stuck} ({where}.) {_NEXT['deadlock']}"
    return {"summary": summary, **_place(first),
            "waits": [{k: v for k, v in wait.items() if k not in ("kind", "text")}
                      for wait in ordered],
            "records": _texts(ordered)}  # fmt: skip


def _crash(outcome: Outcome, waits: Sequence[dict[str, Any]], where: str) -> dict[str, Any]:
    what = clean(outcome.error) or "its process ended"
    summary = f"Rank {outcome.rank} crashed: {_sentence(what)} ({where}.) {_NEXT['crashed']}"
    evidence: dict[str, Any] = {"summary": summary, "rank": outcome.rank}
    if outcome.said:
        evidence["stderr"] = clean(outcome.said)
    if waits:
        evidence["records"] = _texts(waits)
    return evidence


def _is_crash(error: str) -> bool:
    return any(name in error.upper().replace(" ", "_") for name in _CRASHES)


def _weight(wait: dict[str, Any]) -> int:
    named = str(wait.get("signal", ""))
    if "'" in named:
        return 0
    return 2 if "to enter" in named or "to leave" in named else 1


def _place(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in ("rank", "block", "role") if name in record}


def _texts(records: Sequence[dict[str, Any]]) -> list[str]:
    return [record["text"] for record in records]


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
