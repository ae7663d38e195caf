"""The stages of a judgement, in order: build, check, bench. The first that fails ends it."""

from collections.abc import Callable
from typing import Any

from sandbox.verdict import Stage, Status

# Called with a stage's name and what it is about to do.
Progress = Callable[[str, dict[str, Any]], None]


class StageFailed(Exception):  # noqa: N818 - an outcome of judging, not an error of the judge
    """The candidate failed a stage: the status it gets, and the evidence with its "summary"."""

    def __init__(self, stage: Stage, status: Status, evidence: dict[str, Any]) -> None:
        super().__init__(evidence["summary"])
        self.stage = stage
        self.status = status
        self.evidence = evidence
