"""What a comparison says: findings per output and rank, and their summary in plain English."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from problems.answers.wrong_answers import Match

FindingKind = Literal[
    "missing", "shape", "dtype", "nan", "stale", "scale", "precision",
    "all_wrong", "peer_slice", "boundary", "row_band", "tile", "scattered",
]  # fmt: skip
MAX_SENTENCES = 4
STRUCTURE: frozenset[FindingKind] = frozenset({"missing", "shape", "dtype"})


@dataclass(frozen=True)
class Finding:
    """One output of one rank that is wrong.

    `rank` is None if the whole list of results is malformed. `text` says what is wrong in words;
    the other fields are absent where they have no meaning. `owner` is the rank whose part of the
    output is wrong, if it is exactly one.
    """

    kind: FindingKind
    output: str
    rank: int | None
    text: str
    region: str = ""
    fraction_bad: float | None = None
    first_bad: tuple[int, ...] | None = None
    expected: float | None = None
    seen: float | None = None
    max_abs: float | None = None
    limit: float | None = None
    owner: int | None = None
    match: Match | None = None

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON; NaN and infinity become text."""
        return {name: _plain(value) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Measured:
    """The largest error of one output over all ranks, and its limit there."""

    max_error: float
    max_limit: float


@dataclass(frozen=True)
class Comparison:
    """The judgement of one call's outputs; `summary` is a paragraph for the kernel's author."""

    ok: bool
    findings: tuple[Finding, ...]
    measured: Mapping[str, Measured]
    summary: str

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON."""
        return {
            "ok": self.ok,
            "summary": self.summary,
            "findings": [finding.to_json() for finding in self.findings],
            "measured": {
                name: {"max_error": _plain(m.max_error), "max_limit": _plain(m.max_limit)}
                for name, m in self.measured.items()
            },
        }


def summarize(
    findings: Sequence[Finding], measured: Mapping[str, Measured], world_size: int
) -> str:
    """One paragraph: what is wrong where, and what it looks like; the same on ranks told once."""
    if not findings:
        sizes = ", ".join(
            f"{name} within {_number(m.max_error)} (limit {_number(m.max_limit)})"
            for name, m in measured.items()
        )
        return f"All outputs of all {world_size} ranks are right: {sizes}."
    groups: dict[tuple[Any, ...], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.output, finding.kind, _family(finding)), []).append(finding)
    sentences = [_sentence(group, world_size) for group in groups.values()]
    shown = sentences[:MAX_SENTENCES]
    if len(sentences) > len(shown):
        shown.append(f"{len(sentences) - len(shown)} more kinds of mistake are left out here.")
    return " ".join(shown)


def _sentence(group: Sequence[Finding], world_size: int) -> str:
    """A group of findings: the first in full, the ranks that share its form, and the cause."""
    first = group[0]
    if first.rank is None:
        return first.text
    alike = [f for f in group if f.region == first.region]
    where = _which_ranks([f.rank for f in alike], world_size)
    if len(alike) > 1:
        where += f" (the numbers are those of rank {first.rank})"
    parts = [f"{first.output} on {where}: {first.text}"]
    if elsewhere := [f.rank for f in group if f.region != first.region]:
        parts.append(f"The same, but elsewhere, on {_which_ranks(elsewhere, world_size)}.")
    if first.match is not None:
        parts.append(first.match.meaning)
        if first.match.name.startswith("output_without"):
            parts.append(_missing(group))
    return " ".join(parts)


def _missing(group: Sequence[Finding]) -> str:
    """Whose fault it is that contributions are missing: the sender's or the receivers'."""
    missed = {f.rank: f.match.rank for f in group if f.match is not None}
    peers = sorted({rank for rank in missed.values() if rank is not None})
    if len(missed) == 1:
        return "Only this rank misses it: look at its wait and at its list of peers."
    if len(peers) == 1:
        return (
            f"All these ranks miss rank {peers[0]}: look at what rank {peers[0]} stores and "
            "signals, and where to."
        )
    listed = ", ".join(f"rank {rank} misses {peer}" for rank, peer in sorted(missed.items()))
    return f"Different peers are missing ({listed}): look at the receivers' waits and peer lists."


def _family(finding: Finding) -> str | None:
    """The kind of known wrong answer, without the rank or input in its name."""
    return None if finding.match is None else re.sub(r"(_rank_\d+|:.*)$", "", finding.match.name)


def _which_ranks(ranks: Sequence[int | None], world_size: int) -> str:
    if len(ranks) == world_size:
        return f"all {world_size} ranks" if world_size > 1 else "the only rank"
    names = ", ".join(str(rank) for rank in ranks)
    return f"rank {names} of {world_size}" if len(ranks) == 1 else f"ranks {names} of {world_size}"


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _number(value: float) -> str:
    return f"{value:.3g}"
