"""The prompt: stable facts first, then the history, last the kernel to change and its verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.llm.facts import machine_text, problem_text, roofline_text
from agent.llm.protocol import Message
from agent.llm.reply import FORMAT
from agent.ranking import leaders
from agent.records import AttemptRecord
from pk_runtime import guide
from pk_runtime.candidate import Candidate
from pk_runtime.target import Target
from problems.description import Description
from sandbox.explain import compact
from sandbox.verdict import Verdict

LAST_ATTEMPTS, BEST_ATTEMPTS = 5, 3
EVIDENCE_CHARACTERS = 6_000
HYPOTHESIS_CHARACTERS = 240
SUMMARY_CHARACTERS = 240

SYSTEM = """\
You write kernels for several GPUs with pk_runtime, one C++20 file per kernel. Correct comes \
first: a kernel is judged on a simulator that finds races, deadlocks and wrong elements, and its \
verdict tells you what it saw. Then fast: the time is the maximum over the ranks. Change one \
thing at a time and predict its effect. Use only what the guide describes; no other header, no \
inline assembly, no host code. Never special-case shapes, seeds or data.

"""


@dataclass(frozen=True)
class Situation:
    """What the next kernel is to be derived from.

    `parent` None means from scratch; `example` is then a kernel of another problem to read.
    `complaint` says why the last reply could not be used, `advice` what the search needs now.
    """

    attempts: Sequence[AttemptRecord]
    parent: AttemptRecord | None
    example: Candidate | None = None
    complaint: str = ""
    advice: str = ""


class Prompt:
    """Builds the messages of one job."""

    def __init__(self, problem: Description, target: Target, shape: str | None) -> None:
        """Render what stays the same in every call; reads the guide."""
        self._system = SYSTEM + guide.text()
        self._facts = "\n\n".join(
            (problem_text(problem), machine_text(target), roofline_text(problem, target, shape))
        )

    def build(self, now: Situation, history: int = LAST_ATTEMPTS + BEST_ATTEMPTS) -> list[Message]:
        """Return the messages, with at most `history` past attempts, and say so if any are cut."""
        parts = [self._facts, history_text(now.attempts, history), *self._current(now)]
        if now.complaint:
            parts.append(f"# Your last reply could not be used\n{now.complaint}")
        if now.advice:
            parts.append(f"# Advice\n{now.advice}")
        parts.append(f"# Your answer\n{FORMAT}")
        return [
            {"role": "system", "content": self._system},
            {"role": "user", "content": "\n\n".join(part for part in parts if part)},
        ]

    def _current(self, now: Situation) -> list[str]:
        if now.parent is not None:
            return [
                f"# The kernel to change: attempt {now.parent.number}",
                _listing(now.parent.candidate),
                f"# Its verdict\n{verdict_text(now.parent.verdict)}",
            ]
        if now.example is not None:
            return ["# A kernel of another problem, as an example", _listing(now.example)]
        return []


def _listing(candidate: Candidate) -> str:
    knobs = ", ".join(f"{name}={value}" for name, value in candidate.knobs.items())
    return (
        f"knobs that differ from the defaults: {knobs or 'none'}\n"
        f"```cpp\n{candidate.source.rstrip()}\n```"
    )


def history_text(attempts: Sequence[AttemptRecord], limit: int) -> str:
    """Summarize the best few and the last few search attempts, one line each."""
    search = [a for a in attempts if a.phase == "search" and a.status != "infra_error"]
    if not search:
        return ""
    best = leaders(attempts)[:BEST_ATTEMPTS]
    wanted = {a.number: a for a in (*best, *reversed(search[-LAST_ATTEMPTS:]))}
    shown = sorted(list(wanted.values())[:limit], key=lambda attempt: attempt.number)
    lines = [f"# History: {len(search)} attempts so far, times are {_kinds(search)}"]
    if limit < len(wanted):
        lines.append(f"(cut to {len(shown)} attempts: the context window is nearly full)")
    return "\n".join((*lines, *map(_history_line, shown)))


def _history_line(attempt: AttemptRecord) -> str:
    origin = f" from {attempt.parent}" if attempt.parent else ""
    expected = f", predicted {attempt.predicted_us:g} us" if attempt.predicted_us else ""
    result: str = attempt.status or "not judged"
    if attempt.correct:
        result += f" {attempt.objective_us:.1f} us, {attempt.speedup:.3f}x, {attempt.bottleneck}"
    elif attempt.verdict is not None:
        result += f": {_cut(attempt.verdict.summary, SUMMARY_CHARACTERS)}"
    hypothesis = _cut(" ".join(attempt.hypothesis.split()), HYPOTHESIS_CHARACTERS)
    return f"- attempt {attempt.number}{origin}: {hypothesis}{expected} -> {result}"


def _kinds(attempts: Sequence[AttemptRecord]) -> str:
    return " and ".join(sorted({a.kind for a in attempts if a.kind})) or "not known yet"


def verdict_text(verdict: Verdict | None) -> str:
    """Render a verdict: status, evidence, and what bounds each timed shape."""
    if verdict is None:
        return "not judged yet"
    lines = [f"status: {verdict.status} (stage {verdict.stage})"]
    for timing in verdict.timings:
        lines.append(
            f"{timing.shape}: {timing.candidate_us:.1f} us {timing.kind}, "
            f"{timing.speedup:.3f}x over PyTorch + NCCL, "
            f"{timing.roofline_fraction:.0%} of the roofline, bottleneck {timing.bottleneck}"
        )
    lines += compact(verdict.timings)
    lines.append(f"evidence: {_cut(_json(verdict.evidence), EVIDENCE_CHARACTERS)}")
    return "\n".join(lines)


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, default=str)


def _cut(text: str, limit: int) -> str:
    """Keep head and tail of a long text and say how much is missing."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} ...[{len(text) - 2 * half} characters cut]... {text[-half:]}"
