"""Schedules of the simulator: in which order workers run and what is under way arrives.

A schedule is a short text that repeats a run exactly, given the same program, inputs and grid:
`eager`, `latest`, `random:SEED`, `pct:SEED:DEPTH:HORIZON`, or `exhaustive:CHOICES`, one path of the
exhaustive search. docs/simulator.md says what each of them tries.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

Strategy = Literal["eager", "latest", "random", "pct", "exhaustive"]
Search = Literal["mixed", "random", "pct", "exhaustive"]

PCT_DEPTH = 3
_AS_LONG_AS_BEFORE = 0
_PATTERN = re.compile(
    r"eager|latest|random:\d{1,19}|pct:\d{1,19}:\d{1,3}:\d{1,9}"
    r"|exhaustive:(?:first|\d{1,5}=\d{1,5}(?:,\d{1,5}=\d{1,5})*)"
)


class ScheduleError(ValueError):
    """A text that is no schedule; the message shows the forms there are."""


@dataclass(frozen=True)
class Schedule:
    """One schedule. `str()` gives the text that `parse` takes."""

    text: str

    def __post_init__(self) -> None:
        if not _PATTERN.fullmatch(self.text):
            raise ScheduleError(
                f"{self.text[:80]!r} is no schedule: write eager, latest, random:SEED, "
                "pct:SEED:DEPTH:HORIZON, or the exhaustive:... of a report"
            )

    def __str__(self) -> str:
        return self.text

    @property
    def strategy(self) -> Strategy:
        """What chooses."""
        return cast(Strategy, self.text.partition(":")[0])

    @staticmethod
    def of_seed(seed: int) -> "Schedule":
        """Seed 0 is the eager schedule, 1 the latest, and every other draws a random one."""
        return Schedule({0: "eager", 1: "latest"}.get(seed, f"random:{seed}"))


EAGER, LATEST = Schedule("eager"), Schedule("latest")


def drawn(search: Search, number: int, seed: int, depth: int = PCT_DEPTH) -> Sequence[Schedule]:
    """`number` schedules drawn from `seed`; "mixed": eager, latest, then random and pct by turns.

    Raises ValueError for "exhaustive", whose schedules are found while it runs.
    """
    draw = random.Random(seed)
    fixed = [EAGER, LATEST] if search == "mixed" else []
    if search == "exhaustive":
        raise ValueError("the schedules of an exhaustive search cannot be listed beforehand")
    made = [
        Schedule(f"random:{draw.getrandbits(31)}")
        if search == "random" or (search == "mixed" and turn % 2 == 0)
        else Schedule(f"pct:{draw.getrandbits(31)}:{depth}:{_AS_LONG_AS_BEFORE}")
        for turn in range(number - len(fixed))
    ]
    return [*fixed, *made][:number]
