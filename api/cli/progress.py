"""A job as its events tell it: rows that grow, drawn live on a terminal or as plain lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from api.cli.client import Event
from api.cli.console import note, safe, stderr
from api.cli.formats import UNKNOWN, knobs, microseconds, status_style, timed, times

if TYPE_CHECKING:
    from rich.table import Table


@dataclass
class Row:
    """One attempt as far as the events tell it."""

    number: int
    parent: int | None
    knobs: Mapping[str, Any]
    hypothesis: str = ""
    phase: str = "search"
    status: str = "pending"
    stage: str = ""
    candidate_us: float | None = None
    kind: str | None = None
    speedup: float | None = None
    bottleneck: str | None = None


@dataclass
class JobProgress:
    """The state of a job, built from its events."""

    job_id: str
    state: str = "queued"
    rows: dict[int, Row] = field(default_factory=dict)
    best: int | None = None
    usd: float = 0.0
    stop_reason: str | None = None

    def apply(self, event: Event) -> None:
        """Take one event into account; events of unknown types change nothing."""
        payload = event.payload
        match event.type:
            case "job.started" | "job.resumed":
                self.state = "running"
            case "job.queued":
                self.state = "queued"
            case "job.finished":
                self.state = payload["status"]
                self.stop_reason = payload.get("stop_reason")
            case "attempt.proposed":
                self.rows[payload["number"]] = Row(
                    number=payload["number"],
                    parent=payload.get("parent"),
                    knobs=payload.get("knobs") or {},
                    hypothesis=payload.get("hypothesis") or "",
                    phase=payload.get("phase") or "search",
                )
            case "attempt.stage" if payload["number"] in self.rows:
                self.rows[payload["number"]].stage = payload["stage"]
            case "attempt.judged" if payload["number"] in self.rows:
                row = self.rows[payload["number"]]
                for name in ("status", "candidate_us", "kind", "speedup", "bottleneck"):
                    setattr(row, name, payload.get(name))
            case "best.updated":
                self.best = payload["number"]
            case "llm.call":
                self.usd += payload.get("usd") or 0.0

    @property
    def headline(self) -> str:
        """The state of the job in a line."""
        ending = f" ({self.stop_reason})" if self.stop_reason else ""
        spent = f", {self.usd:.2f} USD" if self.usd else ""
        best = self.rows.get(self.best) if self.best is not None else None
        lead = ""
        if best is not None:
            us = timed(best.candidate_us, best.kind)
            lead = f"; best {times(best.speedup)}, {us} (attempt {best.number})"
        return f"{self.job_id}: {self.state}{ending}, {len(self.rows)} attempts{spent}{lead}"


def attempts_table(rows: Sequence[Row], best: int | None) -> Table:
    """The attempts as a table, narrow enough for 80 columns; the best one has a star."""
    from rich.table import Table
    from rich.text import Text

    kinds = sorted({row.kind for row in rows if row.kind is not None})
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("attempt", "from", "status"):
        table.add_column(title, no_wrap=True)
    table.add_column("knobs", overflow="fold", min_width=14)
    for title in (f"time ({kinds[0]})" if len(kinds) == 1 else "time", "speedup"):
        table.add_column(title, justify="right")
    table.add_column("bottleneck", overflow="fold")
    for row in rows:
        table.add_row(
            Text(f"{row.number}{' *' if row.number == best else ''}"),
            Text(UNKNOWN if row.parent is None else str(row.parent)),
            Text(safe(_status(row)), style=status_style(row.status)),
            Text(safe(knobs(row.knobs))),
            Text(microseconds(row.candidate_us))
            if len(kinds) < 2
            else Text(timed(row.candidate_us, row.kind)),
            Text(times(row.speedup)),
            Text(safe(row.bottleneck or UNKNOWN)),
        )
    return table


def _status(row: Row) -> str:
    """The status; a re-judged attempt says that it was judged in full."""
    if row.status == "pending":
        return row.stage or "pending"
    return f"{row.status}, full" if row.phase == "confirm" else row.status


@contextmanager
def shown(progress: JobProgress) -> Iterator[Callable[[Event], None]]:
    """Show `progress` on stderr while events are fed in: live on a terminal, else line by line."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    console = stderr()
    if not console.is_terminal:
        yield lambda event: _feed_plain(progress, event)
        return

    def drawn() -> Group:
        # The newest rows: a live display taller than the screen cannot be redrawn in place.
        room = max(5, console.height - 6)
        rows = list(progress.rows.values())[-room:]
        return Group(attempts_table(rows, progress.best), Text(safe(progress.headline)))

    with Live(drawn(), console=console, refresh_per_second=4) as live:

        def feed(event: Event) -> None:
            progress.apply(event)
            live.update(drawn())

        yield feed


def _feed_plain(progress: JobProgress, event: Event) -> None:
    progress.apply(event)
    line = plain_line(progress, event)
    if line is not None:
        note(safe(line))


def plain_line(progress: JobProgress, event: Event) -> str | None:
    """What one event says to a log, or None when it is not worth a line."""
    payload = event.payload
    match event.type:
        case "job.queued":
            return f"{progress.job_id} is queued"
        case "job.started":
            return f"{progress.job_id} has started"
        case "job.resumed":
            return f"{progress.job_id} goes on after {len(progress.rows)} attempts"
        case "job.finished":
            return progress.headline
        case "attempt.judged" if payload["number"] in progress.rows:
            row = progress.rows[payload["number"]]
            parts = [f"attempt {row.number} ({row.phase}): {row.status}"]
            if row.candidate_us is not None:
                parts.append(f"{timed(row.candidate_us, row.kind)}, {times(row.speedup)} baseline")
            if row.bottleneck:
                parts.append(f"bottleneck {row.bottleneck}")
            return ", ".join([*parts, f"knobs {knobs(row.knobs)}"])
        case "best.updated":
            return f"  new best: attempt {payload['number']}, {times(payload.get('speedup'))}"
        case "plateau.called":
            return "  plateau: recent attempts bring nothing new"
        case "budget.warn":
            return f"  budget: {safe(_pairs(payload))}"
        case "cancel.requested":
            return "cancellation requested"
    return None


def _pairs(payload: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in payload.items())
