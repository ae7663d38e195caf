"""Candidates as artifacts: attempts that differ in knobs only share one."""

from __future__ import annotations

import json

from pk_runtime.candidate import Candidate
from store.artifacts import Artifacts
from store.models import Attempt


def load_candidate(artifacts: Artifacts, attempt: Attempt) -> Candidate:
    """The candidate of an attempt; ArtifactError if its source is gone."""
    return load_source(artifacts, attempt.source_sha256, attempt.knobs)


def load_source(artifacts: Artifacts, sha256: str, knobs: dict[str, int]) -> Candidate:
    """The candidate with this source and these knobs; ArtifactError if its source is gone."""
    document = json.loads(artifacts.get(sha256))
    return Candidate.from_json(document | {"knobs": knobs})
