"""What is known after many schedules of one kernel, and how its blocks were placed."""

from dataclasses import dataclass, field
from typing import Any, Literal, cast

from pk_runtime.run_folder import RankTensors
from pk_runtime.schedules import Schedule

Outcome = Literal["finished", "race", "deadlock", "fault", "timeout", "dirty"]

ENDED_BY = ("finished", "race", "deadlock", "fault", "timeout", "dirty")


@dataclass(frozen=True)
class Exploration:
    """What many schedules have shown. It ends at the first that does not finish.

    `outputs` has one entry for each different set of outputs, with the first schedule that gave it.
    `complete` says that every order of synchronization was run that could make a difference;
    `stopped_by` why it was not: "number", "wall", "finding", "outputs" (more than 16 different
    sets), "too_long" (a run with more than 4,096 events), "diverged" (a schedule could not be
    repeated). `redundant` counts runs of the search that were given up as repetitions. `diagnosis`
    is the report of the run that found something, or of the last that finished.
    """

    outcome: Outcome
    schedules_run: int = 0
    redundant: int = 0
    complete: bool = False
    stopped_by: str = ""
    last: Schedule | None = None
    outputs: list[tuple[Schedule, list[list[RankTensors]]]] = field(default_factory=list)
    diagnosis: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Grid:
    """How a kernel is placed. `compute_sms`: blocks beside the communicators, one for all ranks or
    one for each.

    `resident` blocks of a rank run at a time, in an order that `placement` draws; 0 means all.
    """

    compute_sms: int | tuple[int, ...] = 5
    resident: int = 0
    placement: int = 0

    def to_json(self) -> dict[str, Any]:
        """The settings that are not as usual, and `compute_sms`."""
        found: dict[str, Any] = {"compute_sms": self.compute_sms}
        if self.resident:
            found |= {"resident": self.resident, "placement": self.placement}
        return found


def read_exploration(
    report: dict[str, Any], kinds: list[tuple[Schedule, list[list[RankTensors]]]]
) -> Exploration:
    """What a report tells of; ValueError, KeyError or TypeError if it is malformed."""
    last = report.get("last_report")
    if not isinstance(last, dict):
        last = lost("a schedule ended the program without a report")
    outcome = last.get("outcome") if report["stopped_by"] == "finding" else "finished"
    if outcome not in ENDED_BY or not isinstance(report["complete"], bool):
        raise ValueError("it has an unknown outcome")
    if report["stopped_by"] == "finding" and outcome == "finished":
        raise ValueError("it ended at a schedule that ended without a report of its own")
    if outcome == "finished" and report["stopped_by"] != "wall" and not kinds:
        raise ValueError("it has no outputs")
    return Exploration(
        outcome=cast(Outcome, outcome),
        schedules_run=int(report["schedules_run"]),
        redundant=int(report["redundant"]),
        complete=report["complete"],
        stopped_by=str(report["stopped_by"]),
        last=Schedule(report["last_schedule"]) if report["last_schedule"] else None,
        outputs=kinds,
        diagnosis=last if report["schedules_run"] else {},
    )


def lost(summary: str) -> dict[str, Any]:
    """A diagnosis for a program that told nothing itself."""
    return {"outcome": "fault", "kind": "no_report", "summary": summary}
