"""A verdict as lines of plain text for a person: what, why, where, what next, how fast.

The command line colours them and the service stores them; no line depends on a terminal.
"""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from pk_runtime.report import brief, stored_report, text
from sandbox.labels import MEANING as LABEL_MEANING
from sandbox.labels import Label
from sandbox.verdict import Status, Timing, Verdict

WIDTH = 100
MOST_LINES = 60
_OTHER_LINES, _LEAST_LINES = 16, 24  # of a correct verdict, beside its timings
_INDENT = "  "
_MOST_WAITS = 8
_MOST_MESSAGES = 8
_WAIT_COLUMNS = ("rank", "block", "role", "launch", "signal", "slot", "expected", "seen")

MEANING: Mapping[Status, str] = {
    "correct": "every check passed",
    "build_failed": "it does not compile",
    "crashed": "it broke a rule of the machine while running",
    "wrong_output": "it computes something else",
    "deadlock": "it waits for something that never comes",
    "race": "it is right only if transfers happen to be fast",
    "timeout": "it does not come to an end",
    "rejected": "it is not judged on its merits",
    "infra_error": "the judge failed, not the candidate",
}
NEXT: Mapping[Status, str] = {
    "correct": "Optimize it: the bottleneck above says where the time goes.",
    "build_failed": "Correct the first message; later ones often follow from it.",
    "crashed": "Look at the named place; check coordinates against the layout's tiles_down() and "
    "tiles_across().",
    "wrong_output": "Compare the named ranks and tiles with the kernel's task order and peers.",
    "deadlock": "Find who should send the first signal in the table, and why it does not.",
    "race": "Wait before the data is read or the buffer reused, and signal after the store.",
    "timeout": "Check every loop's bound; all roles must run over the same number of tasks.",
    "rejected": "Write it with what docs/pk_guide.md describes; the message says what is refused.",
    "infra_error": "Run it again; if it fails again, `pkforge doctor` looks for the cause.",
}


def explain(verdict: Verdict) -> list[str]:
    """The verdict's lines, without trailing blanks or newlines, at most about 100 columns."""
    lines = [f"{verdict.status}: {MEANING[verdict.status]}",
             f"  {verdict.problem} on {verdict.target}, {verdict.language} candidate "
             f"{verdict.candidate[:12]}{_knobs(verdict)}, {verdict.depth} check"]  # fmt: skip
    if not verdict.correct:
        lines.append(f"  stage: {verdict.stage}{_place(verdict.evidence)}")
    lines += ["", *_wrapped(verdict.summary)]
    for section in (_diagnostics, _violations, _waits, _findings, _replays):
        lines += section(verdict.evidence)
    if verdict.timings:
        lines += ["", *_timings(verdict.timings)]
    for label in verdict.labels:
        meaning = LABEL_MEANING.get(cast(Label, label), "")
        lines += ["", *_wrapped(f"label {label}: {meaning}")]
    lines += ["", *_wrapped(f"next: {NEXT[verdict.status]}"), "", *_footer(verdict)]
    return lines


def _knobs(verdict: Verdict) -> str:
    chosen = ", ".join(f"{name}={value}" for name, value in sorted(verdict.knobs.items()))
    return f" ({chosen})" if chosen else ""


def _place(evidence: Mapping[str, Any]) -> str:
    words = {"shape": "shape", "world_size": "ranks", "schedule_seed": "schedule",
             "schedule": "schedule"}  # fmt: skip
    names = (*words, "launch", "rank", "block", "role")
    parts = [f"{words.get(name, name)} {evidence[name]}" for name in names if name in evidence]
    return f", {', '.join(parts)}" if parts else ""


def _wrapped(text: str) -> list[str]:
    lines: list[str] = []
    for paragraph in text.splitlines():
        lines += textwrap.wrap(
            paragraph, WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return lines


def _diagnostics(evidence: Mapping[str, Any]) -> Iterator[str]:
    records = _records(evidence, "diagnostics")
    if records:
        yield ""
    for record in records[:_MOST_MESSAGES]:
        where = f"{record.get('file')}:{record.get('line')}:{record.get('column')}"
        yield f"  {where}: {record.get('severity')}: {record.get('message')}"


def _violations(evidence: Mapping[str, Any]) -> Iterator[str]:
    records = _records(evidence, "violations")
    if records:
        yield ""
    for record in records[:_MOST_MESSAGES]:
        yield f"  {record.get('file')}:{record.get('line')}: {record.get('token')}"
        yield f"    {record.get('why')}. {record.get('instead')}."


def _waits(evidence: Mapping[str, Any]) -> Iterator[str]:
    """Who waits for what: the evidence of a deadlock."""
    records = _records(evidence, "waits")
    if not records:
        return
    yield ""
    rows: list[tuple[str, ...]] = [_WAIT_COLUMNS]
    for record in records[:_MOST_WAITS]:
        shown = dict(record)
        shown.setdefault("signal", _waited_for(record))
        rows.append(tuple(_cell(shown.get(name)) for name in _WAIT_COLUMNS))
    yield from _table(rows)
    if len(records) > _MOST_WAITS:
        yield f"  and {len(records) - _MOST_WAITS} more that wait"


def _replays(evidence: Mapping[str, Any]) -> Iterator[str]:
    """The run that failed, and the smallest one that fails in the same way."""
    if "replay" in evidence:
        yield ""
        yield f"  replay: {evidence['replay']}"
    smallest = evidence.get("smallest")
    if isinstance(smallest, Mapping) and "replay" in smallest:
        yield f"  smallest: {smallest['replay']}"


def _waited_for(record: Mapping[str, Any]) -> str:
    if "mailbox" in record:
        return f"mailbox {record['mailbox']} from {record.get('source', '?')}"
    ring = f" #{record['ring']}" if "ring" in record else ""
    return f"{record.get('waits_for', '?')}{ring}"


def _findings(evidence: Mapping[str, Any]) -> Iterator[str]:
    comparison = evidence.get("comparison")
    records = _records(comparison, "findings") if isinstance(comparison, Mapping) else []
    if not records:
        return
    yield ""
    rows: list[tuple[str, ...]] = [("output", "rank", "kind", "wrong", "first at", "expected",
                                    "seen", "error", "limit")]  # fmt: skip
    for record in records[:_MOST_WAITS]:
        share = record.get("fraction_bad")
        rows.append((
            _cell(record.get("output")), _cell(record.get("rank")), _cell(record.get("kind")),
            f"{100 * share:.3g} %" if isinstance(share, int | float) else "-",
            _cell(record.get("first_bad")),
            *(_cell(record.get(name)) for name in ("expected", "seen", "max_abs", "limit")),
        ))  # fmt: skip
    yield from _table(rows)


def _timings(timings: Sequence[Timing]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("shape", "kind", "candidate", "baseline", "speedup",
                                    "roofline", "of roofline", "bottleneck")]  # fmt: skip
    rows += [
        (t.shape, t.kind, f"{t.candidate_us:.1f} us", f"{t.baseline_us:.1f} us",
         f"{t.speedup:.2f}x", f"{t.roofline_us:.1f} us", f"{100 * t.roofline_fraction:.0f} %",
         t.bottleneck)
        for t in timings
    ]  # fmt: skip
    yield from _table(rows)
    yield ""
    room = MOST_LINES - _OTHER_LINES - len(timings)
    yield from (_INDENT + line for line in compact(timings, max(room, _LEAST_LINES)))
    source = max(timings, key=lambda timing: timing.candidate_us).detail.get("baseline")
    if isinstance(source, str):
        yield from _wrapped(f"baseline: {source}")


def compact(timings: Sequence[Timing], most: int = MOST_LINES) -> list[str]:
    """What the reports of some timings say, in at most `most` lines, for people and models.

    The slowest shapes are told in full, as far as there is room; the others in two lines each.
    Timings without a report, measured or stored by an older version, are told by what they have.
    """
    reports = [(timing, stored_report(timing.detail)) for timing in timings]
    told = [brief(r, t.shape) if r is not None else _without_report(t) for t, r in reports]
    for at in sorted(range(len(told)), key=lambda i: -timings[i].candidate_us):
        report = reports[at][1]
        full = [] if report is None else text(report, timings[at].shape)
        if full and sum(map(len, told)) - len(told[at]) + len(full) <= most:
            told[at] = full
    lines = [line for shape in told for line in shape]
    if len(lines) > most:
        lines = [*lines[: most - 1], f"({len(lines) - most + 1} more lines are left out)"]
    return lines


def _without_report(timing: Timing) -> list[str]:
    found = timing.detail.get("bottleneck")
    why = found.get("why") if isinstance(found, Mapping) else None
    lines = textwrap.wrap(f"bottleneck at {timing.shape}: {timing.bottleneck}. {why or ''}", WIDTH)
    if timing.kind == "measured":
        lines += textwrap.wrap(_measured(timing), WIDTH)
    return lines


def _measured(timing: Timing) -> str:
    """What was measured of one shape beside its time, in one line."""
    parts = [f"{timing.shape}:"]
    for mode in ("throughput", "latency"):
        figures = timing.detail.get(mode)
        known = figures.items() if isinstance(figures, Mapping) else ()
        medians = [
            f"{who} {spread['median_us']:.1f}"
            for who, spread in known
            if isinstance(spread, Mapping) and isinstance(spread.get("median_us"), int | float)
        ]
        if medians:
            parts.append(f"{mode} {', '.join(medians)} us;")
    between = timing.detail.get("speedup_interval")
    if isinstance(between, list) and len(between) == 2:
        parts.append(f"speedup between {between[0]:.2f} and {between[1]:.2f} (95 %);")
    parts += _beside(timing.detail.get("incumbent"))
    rates = timing.detail.get("achieved")
    if isinstance(rates, Mapping):
        parts += [f"{rate:g} {name.replace('_per_', '/').replace('_', ' ')};"
                  for name, rate in rates.items()]  # fmt: skip
    clocks = timing.detail.get("clocks")
    mhz = [c["sm_mhz"] for c in clocks if "sm_mhz" in c] if isinstance(clocks, list) else []
    if mhz:
        parts.append(f"{min(mhz)} to {max(mhz)} MHz;")
    return " ".join(parts).rstrip(";")


def _beside(incumbent: object) -> list[str]:
    """How it compares with the best kernel so far, which was timed by turns with it."""
    if not isinstance(incumbent, Mapping):
        return []
    between = incumbent.get("ratio_interval")
    if not isinstance(between, list) or len(between) != 2:
        return [f"not compared with the best so far: {incumbent.get('left_out', 'unknown')};"]
    ratio = incumbent.get("ratio", math.nan)
    return [f"{ratio:.3f}x the best so far, {between[0]:.3f} to {between[1]:.3f} (95 %);"]


def _footer(verdict: Verdict) -> Iterator[str]:
    isolation = verdict.isolation
    if isolation.get("isolated") is False:
        yield "  isolation: NONE. The candidate ran with the judge's own rights."
    else:
        yield f"  isolation: {isolation.get('backend', 'unknown')}"
    seconds = verdict.evidence.get("seconds")
    if isinstance(seconds, Mapping) and seconds:
        spent = ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
        yield f"  where the time went: {spent}"
    yield f"  seed: {verdict.seed} (repeat with --seed {verdict.seed})"


def _records(evidence: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = evidence.get(name)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value)[:40]


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield (_INDENT + "  ".join(cells)).rstrip()
