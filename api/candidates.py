"""Candidates in requests: the same checks wherever one is sent."""

from __future__ import annotations

from api.errors import ApiError, FieldError
from api.schemas.common import CandidateBody
from pk_runtime.candidate import Candidate, CandidateError, validate


def candidate_of(body: CandidateBody, pointer: str) -> Candidate:
    """The candidate in a request; `malformed_candidate` at `pointer` when it cannot be built."""
    candidate = Candidate(language=body.language, files=body.files, knobs=body.knobs)
    try:
        validate(candidate)
    except CandidateError as error:
        where = FieldError(str(error), pointer=pointer)
        raise ApiError("malformed_candidate", f"The candidate: {error}", errors=[where]) from None
    return candidate
