"""What a user asks for: one optimization job, as plain data that travels as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast, get_args

from pk_runtime.candidate import Candidate, CandidateError

PolicyKind = Literal["tuner", "llm", "scripted"]

StopReason = Literal[
    "target_reached",
    "plateaued",
    "budget_usd",
    "budget_wall",
    "budget_attempts",
    "exhausted",
    "cancelled",
    "infra",
]

MAX_ATTEMPTS = 10_000

_T = TypeVar("_T")
_NUMBER = (int, float)
_OPTIONAL = type(None)
_JOB_TYPES: Mapping[str, tuple[type, ...]] = {
    "problem": (str,),
    "target": (str,),
    "policy": (str,),
    "shape": (str, _OPTIONAL),
    "target_speedup": (int, float, _OPTIONAL),
    "seed": (int, _OPTIONAL),
}


class SpecError(ValueError):
    """A job specification that cannot be run: says which field, why, and what would be valid."""


@dataclass(frozen=True)
class Budget:
    """What a job may use up: search attempts, US dollars for models, seconds of working time."""

    attempts: int = 40
    usd: float = 5.0
    wall_s: float = 3600.0

    def __post_init__(self) -> None:
        """Raise SpecError for a budget nobody can mean."""
        _check_types(self, "budget", {"attempts": (int,), "usd": _NUMBER, "wall_s": _NUMBER})
        if not 1 <= self.attempts <= MAX_ATTEMPTS:
            raise SpecError(f"budget.attempts is {self.attempts}: give 1 to {MAX_ATTEMPTS}")
        if not (math.isfinite(self.usd) and self.usd >= 0):
            raise SpecError(f"budget.usd is {self.usd}: give 0 or more dollars")
        if not (math.isfinite(self.wall_s) and self.wall_s > 0):
            raise SpecError(f"budget.wall_s is {self.wall_s}: give more than 0 seconds")


@dataclass(frozen=True)
class PolicyName:
    """A parsed policy string: `tuner`, `llm:<litellm model>`, `scripted[:<directory>]`."""

    kind: PolicyKind
    argument: str = ""

    def __str__(self) -> str:
        """Return the string that `parse_policy` accepts."""
        return f"{self.kind}:{self.argument}" if self.argument else self.kind


def parse_policy(text: str) -> PolicyName:
    """Split a policy string; raise SpecError that lists the known forms."""
    kind, _, argument = text.partition(":")
    if kind not in get_args(PolicyKind):
        raise SpecError(
            f"unknown policy {text!r}: use 'tuner', 'llm:<litellm model>' or 'scripted:<directory>'"
        )
    if kind == "llm" and not argument:
        raise SpecError("policy 'llm' names no model: write 'llm:<litellm model>'")
    if kind == "tuner" and argument:
        raise SpecError(f"policy 'tuner' takes no argument, but {argument!r} was given")
    return PolicyName(cast(PolicyKind, kind), argument)


@dataclass(frozen=True)
class JobSpec:
    """One job: problem x target x policy x budget.

    `shape` None means the geometric mean over every bench shape. `seed` fixes both the policy and
    the judge (None: policy seed 0, secret judge seed). `start_from` replaces the shipped kernels as
    the starting point. `scripted` are the candidates of policy `scripted`, in order.
    """

    problem: str
    target: str
    policy: str = "tuner"
    shape: str | None = None
    budget: Budget = field(default_factory=Budget)
    target_speedup: float | None = None
    seed: int | None = None
    start_from: Candidate | None = None
    scripted: tuple[Candidate, ...] | None = None

    def __post_init__(self) -> None:
        """Raise SpecError for an unknown policy or a target that makes no sense."""
        _check_types(self, "job", _JOB_TYPES)
        name = parse_policy(self.policy)
        if name.kind == "scripted" and not name.argument and not self.scripted:
            raise SpecError(
                "policy 'scripted' has no candidates: name a directory, or give `scripted`"
            )
        goal = self.target_speedup
        if goal is not None and not (math.isfinite(goal) and goal > 0):
            raise SpecError(f"target_speedup is {goal}: give a number above 0, such as 1.5")

    @property
    def policy_seed(self) -> int:
        """The seed of every random choice a policy makes."""
        return 0 if self.seed is None else self.seed

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data; `from_json` reads it back."""
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        data["budget"] = dataclasses.asdict(self.budget)
        data["start_from"] = self.start_from and self.start_from.to_json()
        data["scripted"] = self.scripted and [candidate.to_json() for candidate in self.scripted]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobSpec:
        """Read what `to_json` wrote; raise SpecError naming the field that is wrong."""
        values = _known_fields(cls, data, "job")
        budget = _mapping(values.get("budget") or {}, "budget")
        values["budget"] = _build(Budget, _known_fields(Budget, budget, "budget"), "budget")
        if values.get("start_from") is not None:
            values["start_from"] = _candidate(values["start_from"], "start_from")
        if values.get("scripted") is not None:
            items = values["scripted"]
            if not isinstance(items, list | tuple):
                raise SpecError(f"scripted must be a list, not {type(items).__name__}")
            values["scripted"] = tuple(
                _candidate(item, f"scripted[{i}]") for i, item in enumerate(items)
            )
        return _build(cls, values, "job")


def _candidate(data: Any, where: str) -> Candidate:
    try:
        return Candidate.from_json(data)
    except CandidateError as error:
        raise SpecError(f"{where}: {error}") from error


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SpecError(f"{where} must be an object, not {type(value).__name__}")
    return value


def _known_fields(cls: type, data: Mapping[str, Any], where: str) -> dict[str, Any]:
    known = [f.name for f in dataclasses.fields(cls)]
    unknown = sorted(set(data) - set(known))
    if unknown:
        names = ", ".join(known)
        raise SpecError(f"{where} has no field {unknown[0]!r}: its fields are {names}")
    return dict(data)


def _check_types(spec: object, where: str, types: Mapping[str, tuple[type, ...]]) -> None:
    for name, allowed in types.items():
        value = getattr(spec, name)
        if type(value) not in allowed:
            names = " or ".join(t.__name__ for t in allowed if t is not _OPTIONAL)
            raise SpecError(f"{where}.{name} must be {names}, not {type(value).__name__}")


def _build(cls: type[_T], values: dict[str, Any], where: str) -> _T:
    try:
        return cls(**values)
    except TypeError as error:  # a required field is missing
        raise SpecError(f"{where} is incomplete: {error}") from error
