"""How thoroughly the check stage checks, and how one of its runs is named."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pk_runtime.schedules import Schedule
from sandbox.verdict import Depth

_SEARCH_WALL_S, _LONG_SEARCH_WALL_S = 1.0, 60.0

Schedules = int | Literal["exhaustive"]


@dataclass(frozen=True)
class Plan:
    """How thoroughly to check: launches per run, and how many drawn schedules per shape.

    With `narrow`, every second drawn schedule runs on fewer blocks. `orders` bounds the exhaustive
    search of the orders of synchronization, at the first shape, which may take `search_wall_s`.
    """

    shapes: tuple[str, ...]
    world_sizes: tuple[int, ...]
    launches: int
    drawn_schedules: int
    drawn_schedules_large: int
    narrow: bool = False
    orders: int = 100
    search_wall_s: float = _SEARCH_WALL_S


def plan(
    depth: Depth, shapes: Sequence[str], world_size: int, schedules: Schedules | None = None
) -> Plan:
    """The plan of a depth; `shapes` are the names of the problem's check shapes, smallest first.

    `schedules` replaces the number of drawn schedules per shape; "exhaustive" instead runs every
    order of synchronization at the smallest shape, for at most a minute per world size.
    """
    if depth == "quick":
        made = Plan(tuple(shapes[:1]), (world_size,), 2, 2, 1)
    else:
        worlds = tuple(sorted({min(2, world_size), world_size}))
        made = Plan(tuple(shapes), worlds, 3, 6, 1, narrow=True)
    if schedules == "exhaustive":
        return replace(
            made, shapes=made.shapes[:1], orders=1 << 20, search_wall_s=_LONG_SEARCH_WALL_S
        )
    return made if schedules is None else replace(made, drawn_schedules=schedules)


@dataclass(frozen=True)
class Replay:
    """One run of an earlier check, as its evidence tells it: `str()` gives the text of `parse`."""

    shape: str
    world_size: int
    launches: int
    compute_sms: int
    schedule: Schedule

    def __str__(self) -> str:
        return (
            f"shape={self.shape} ranks={self.world_size} launches={self.launches} "
            f"compute_sms={self.compute_sms} schedule={self.schedule}"
        )

    @staticmethod
    def parse(text: str) -> "Replay":
        """Reads the text of a report; ValueError says what is wrong with it."""
        parts = dict(part.partition("=")[::2] for part in text.split())
        names = ("ranks", "launches", "compute_sms")
        if set(parts) != {"shape", "schedule", *names} or not all(
            re.fullmatch(r"[1-9]\d{0,3}", parts[name]) for name in names
        ):
            raise ValueError(
                f"{text[:200]!r} is no run of a check: copy the text after 'replay' in the report, "
                "shape=... ranks=... launches=... compute_sms=... schedule=..."
            )
        ranks, launches, sms = (int(parts[name]) for name in names)
        return Replay(parts["shape"], ranks, launches, sms, Schedule(parts["schedule"]))
