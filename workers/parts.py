"""What a job needs from the layers below, as one seam: a policy, and a judge for its candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from agent.loop import Policy
from agent.records import Depth
from agent.spec import JobSpec
from pk_runtime.candidate import Candidate
from sandbox.verdict import Verdict
from store import Settings, Store
from store.models import Job

Progress = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True)
class Question:
    """What the judge is asked about a candidate; `shapes` None means the depth's default.

    `incumbent` is the job's best kernel so far, for times measured side by side.
    """

    candidate: Candidate
    depth: Depth
    shapes: tuple[str, ...] | None
    seed: int | None
    incumbent: Candidate | None = None


class Parts(Protocol):
    """The policy and the judge of one job, on its problem and target."""

    def policy(self, spec: JobSpec) -> Policy:
        """The policy that proposes candidates. Raises SpecError."""

    def judge(self, question: Question, progress: Progress) -> Verdict:
        """Judge a candidate; `progress(stage, detail)` is called as each stage begins."""

    def interface(self) -> Mapping[str, Any] | None:
        """The shapes of the problem's tensors as formulas, for a bundle; None if none fit."""


class JobCannotRunError(Exception):
    """The job cannot be run here, now or ever: `reason` is a stable word, the text what to do."""

    def __init__(self, reason: str, summary: str) -> None:
        super().__init__(summary)
        self.reason = reason


OpenParts = Callable[[Settings, Store, Job], AbstractContextManager[Parts]]
