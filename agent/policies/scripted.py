"""Candidates from a list or a directory, in order: for tests, replays and demonstrations."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from agent.loop import Context
from agent.records import Proposal
from agent.spec import SpecError
from pk_runtime.candidate import MAX_SOURCE_BYTES, Candidate

_KNOBS_CHARACTERS = 65_536


class Scripted:
    """Proposes the given candidates in order, skipping repeats, then is exhausted."""

    name = "scripted"

    def __init__(self, candidates: Iterable[Candidate]) -> None:
        """Keep the candidates; raise SpecError if there are none."""
        self._candidates = tuple(candidates)
        if not self._candidates:
            raise SpecError("policy 'scripted' has no candidates: give at least one")

    def propose(self, context: Context) -> Proposal | None:
        """Return the first candidate that no attempt has tried."""
        tried = {a.candidate.digest() for a in context.attempts if a.phase == "search"}
        for position, candidate in enumerate(self._candidates, start=1):
            if candidate.digest() not in tried:
                search = [a.number for a in context.attempts if a.phase == "search"]
                return Proposal(
                    candidate=candidate,
                    hypothesis=f"Candidate {position} of {len(self._candidates)} of the script.",
                    parent=search[-1] if search else None,
                )
        return None


def read_script(directory: Path) -> tuple[Candidate, ...]:
    """Read `*.cu` of a directory in name order, each with the knobs of a `.json` beside it.

    Raises SpecError if the directory or a file cannot be read.
    """
    if not directory.is_dir():
        raise SpecError(f"scripted: {directory} is not a directory")
    found = tuple(_read(path) for path in sorted(directory.glob("*.cu")))
    if not found:
        raise SpecError(f"scripted: {directory} holds no .cu file")
    return found


def _read(path: Path) -> Candidate:
    knobs_path = path.with_suffix(".json")
    try:
        with path.open(encoding="utf-8") as file:
            source = file.read(MAX_SOURCE_BYTES + 1)
        knobs = _knobs(knobs_path) if knobs_path.exists() else {}
        data = {"language": "pk", "files": {"kernel.cu": source}, "knobs": knobs}
        return Candidate.from_json(data)
    except (OSError, ValueError) as error:
        raise SpecError(f"scripted: {path.name}: {error}") from error


def _knobs(path: Path) -> object:
    with path.open(encoding="utf-8") as file:
        text = file.read(_KNOBS_CHARACTERS + 1)
    if len(text) > _KNOBS_CHARACTERS:
        raise ValueError(f"{path.name} is longer than {_KNOBS_CHARACTERS} characters")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None
