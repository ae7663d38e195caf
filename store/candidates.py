"""Candidates as artifacts: attempts that differ in knobs only share one."""

from __future__ import annotations

import json

from pk_runtime.candidate import Candidate
from store.artifacts import Artifacts
from store.models import Attempt


def source_bytes(candidate: Candidate) -> bytes:
    """Language and files of a candidate, without its knobs, as canonical JSON."""
    document = {"language": candidate.language, "files": dict(candidate.files)}
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def load_candidate(artifacts: Artifacts, attempt: Attempt) -> Candidate:
    """The candidate of an attempt; ArtifactError if its source is gone."""
    document = json.loads(artifacts.get(attempt.source_sha256))
    return Candidate.from_json(document | {"knobs": attempt.knobs})
