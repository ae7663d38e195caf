"""Which of a kernel's own knobs touch a bottleneck, and in which direction.

Rules of thumb by name: a knob that is called otherwise gets no advice. What the directions rest on
is in docs/report.md; the tuner and the models try them, nobody takes them for granted.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from pk_runtime.candidate import Knob

Direction = Literal["raise", "lower", "change"]

_SHOWN_VALUES = 3

MEANINGS: Mapping[str, str] = {
    "comm_sms": "SMs that only communicate",
    "stages": "operand tiles in flight in an SM",
    "block_n": "columns of an output tile: operand traffic falls, tiles get fewer",
    "super_m": "row blocks visited together: reuse of operands in L2",
    "lag": "tiles between a partial result and its use: time for it to arrive",
    "segment": "chunks that one signal stands for: fewer signals, later ones",
    "rows": "rows of a transferred tile",
    "cols": "columns of a transferred tile",
    "depth": "tiles in flight in an SM",
    "warpgroups": "warpgroups in an SM that move or add data",
    "pieces": "16-byte pieces a thread moves at a time",
}
# By bottleneck: the first knob is the one to try first.
RULES: Mapping[str, tuple[tuple[str, Direction], ...]] = {
    "tensor": (("comm_sms", "lower"), ("block_n", "raise")),
    "nvlink": (("comm_sms", "lower"), ("cols", "raise"), ("rows", "raise")),
    "hbm": (("super_m", "change"), ("block_n", "raise")),
    "l2": (("block_n", "raise"), ("super_m", "change")),
    "exposed_communication": (("comm_sms", "raise"), ("lag", "change"), ("segment", "lower")),
    "waiting_for_peers": (("lag", "raise"), ("comm_sms", "raise"), ("segment", "lower")),
    "output_path": (("block_n", "lower"), ("comm_sms", "raise")),
    "operand_supply": (("stages", "raise"), ("block_n", "raise"), ("super_m", "change")),
    "latency": (
        *(("depth", "raise"), ("stages", "raise"), ("warpgroups", "raise")),
        *(("pieces", "raise"), ("cols", "lower"), ("segment", "lower")),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class KnobAdvice:
    """One knob of the candidate: its value, where to move it, and the legal values that way.

    `values` has the nearest first.
    """

    name: str
    value: int
    direction: Direction
    values: tuple[int, ...]
    meaning: str

    def text(self) -> str:
        """One line: "stages=3: raise to 4 or 5 (operand tiles in flight in an SM)"."""
        options = " or ".join(map(str, self.values[:_SHOWN_VALUES]))
        return f"{self.name}={self.value}: {self.direction} to {options} ({self.meaning})"

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        return dataclasses.asdict(self) | {"values": list(self.values)}

    @staticmethod
    def from_json(data: object) -> "KnobAdvice":
        """Reads what `to_json` wrote; ValueError if it is out of form."""
        match data:
            case {"name": str(name), "value": int(value), "direction": str(direction),
                  "values": [*values], "meaning": str(meaning)} if (
                      direction in get_args(Direction) and all(type(v) is int for v in values)
                  ):  # fmt: skip
                return KnobAdvice(
                    name, value, cast(Direction, direction), tuple(cast(list[int], values)), meaning
                )
        raise ValueError("knob advice needs name, value, direction, values and meaning")


def advice(
    bottleneck: str, declared: Iterable[Knob], chosen: Mapping[str, int]
) -> tuple[KnobAdvice, ...]:
    """What the kernel's knobs can do about a bottleneck, most promising first.

    `chosen` are the values in use, by name. A knob that has no legal value in the direction wanted
    is left out.
    """
    knobs = {knob.name: knob for knob in declared}
    found = []
    for name, direction in RULES.get(bottleneck, ()):
        if (knob := knobs.get(name)) is None:
            continue
        value = chosen.get(name, knob.default)
        if options := _options(knob.values, value, direction):
            found.append(KnobAdvice(name, value, direction, options, MEANINGS[name]))
    return tuple(found)


def _options(values: tuple[int, ...], value: int, direction: Direction) -> tuple[int, ...]:
    wanted = {
        "raise": [other for other in values if other > value],
        "lower": [other for other in values if other < value],
        "change": [other for other in values if other != value],
    }[direction]
    return tuple(sorted(wanted, key=lambda other: abs(other - value)))
