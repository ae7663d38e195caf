"""Repeating a verdict, and telling whether one still counts.

A verdict names everything it depends on: the source by its hash, knobs, seed, shapes, depth and the
versions of judge, problem, hardware sheet, compiler and driver. So it can be repeated by anybody
who has the source, and whoever kept it can see whether it was reached under rules that still hold.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pk_runtime.candidate import Candidate
from sandbox.verdict import Timing, Verdict

# What a verdict stands and falls with, as its versions name it, and what a person calls it.
DECIDING = {
    "judge": "the judge",
    "problem": "the problem",
    "sheet": "the hardware sheet",
    "gpus": "the GPUs",
}
# Measured times of the same kernel on the same machine differ by less than this between runs.
MEASURED_TOLERANCE = 0.10
_SIMULATED_TOLERANCE = 1e-9  # the same program and the same sheet: the same number


class ReplayError(ValueError):
    """A verdict that cannot be repeated with what was given; the message says what is needed."""


@dataclass(frozen=True)
class Agreement:
    """What a repetition showed.

    `differences` are the points in which the two verdicts contradict each other, `changed` the
    versions that are no longer those of the first, each as a sentence part. Differences without a
    change mean that the first verdict cannot be trusted.
    """

    differences: tuple[str, ...]
    changed: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether the repetition says what the first verdict said."""
        return not self.differences

    @property
    def summary(self) -> str:
        """One sentence for a person."""
        under = f" Since then: {'; '.join(self.changed)}." if self.changed else ""
        if self.agrees:
            return f"The repetition agrees with the verdict.{under}"
        return f"The repetition does not agree: {'; '.join(self.differences)}.{under}"

    def to_json(self) -> dict[str, Any]:
        """The agreement as JSON."""
        return {"agrees": self.agrees, "summary": self.summary, **asdict(self)}


def again(verdict: Verdict, source: Candidate) -> Candidate:
    """The candidate of a verdict, from its source files; ReplayError if they are not its source.

    A verdict of a judge that did not record the source's hash is matched by the candidate's own.
    """
    candidate = Candidate(source.language, source.files, verdict.knobs)
    digests = {source.digest(), candidate.digest()}
    matches = verdict.source == source.source_digest() if verdict.source else (
        verdict.candidate in digests
    )  # fmt: skip
    if not matches:
        raise ReplayError(
            f"the source given is not the one the verdict is about: its SHA-256 is "
            f"{source.source_digest()[:16]}..., the verdict's {(verdict.source or 'unknown')[:16]}"
        )
    return source if verdict.candidate == source.digest() else candidate


def compare(first: Verdict, second: Verdict) -> Agreement:
    """Whether `second`, a repetition, says what `first` said."""
    return Agreement(
        tuple(_differences(first, second)), tuple(changes(first.versions, second.versions))
    )


def changes(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Each version that both name and that is no longer the same."""
    for name in then:
        if name in now and then[name] != now[name]:
            yield f"{DECIDING.get(name, name)} was {then[name]} and is {now[name]}"


def void_because(versions: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Why a verdict with these versions no longer counts; () if it still does.

    It is void once the problem, the judge or the class of the machine is another. `now` holds the
    versions as they are; what it does not name is taken to be unchanged.
    """
    deciding = {name: value for name, value in versions.items() if name in DECIDING}
    return tuple(changes(deciding, now))


def _differences(first: Verdict, second: Verdict) -> Iterator[str]:
    for name in ("status", "stage", "problem", "target"):
        before, after = getattr(first, name), getattr(second, name)
        if before != after:
            yield f"{name} was {before} and is {after}"
    known = {timing.shape: timing for timing in second.timings}
    for timing in first.timings:
        if timing.shape in known:
            yield from _time_differs(timing, known[timing.shape])
        elif first.status == second.status:
            yield f"shape {timing.shape} was timed and is not"


def _time_differs(first: Timing, second: Timing) -> Iterator[str]:
    if first.kind != second.kind:
        yield f"{first.shape} was {first.kind} and is {second.kind}"
        return
    tolerance = MEASURED_TOLERANCE if first.kind == "measured" else _SIMULATED_TOLERANCE
    if not math.isclose(first.candidate_us, second.candidate_us, rel_tol=tolerance):
        yield (
            f"{first.shape} took {first.candidate_us:.2f} us and takes {second.candidate_us:.2f} us"
            f" ({first.kind}, allowed {tolerance:.2g} of it)"
        )
