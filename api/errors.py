"""Every error the service can answer with: one stable code each, documented in `docs/api.md`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class ErrorType:
    """One kind of error: its stable code, HTTP status, short title, and what a caller does next."""

    code: str
    status: int
    title: str
    advice: str


@dataclass(frozen=True)
class FieldError:
    """One offending part of a request: a JSON pointer into the body, or a named parameter."""

    detail: str
    pointer: str | None = None
    parameter: str | None = None

    def to_json(self) -> dict[str, str]:
        """The members that are set, as the `errors` list of a problem document holds them."""
        members = {"pointer": self.pointer, "parameter": self.parameter, "detail": self.detail}
        return {name: value for name, value in members.items() if value is not None}


_TYPES = (
    ErrorType(
        "invalid_json", 400, "The body is not valid JSON", "Send one JSON document in UTF-8."
    ),
    ErrorType(
        "invalid_cursor",
        400,
        "The cursor is not one this service gave out",
        "Pass `next_cursor` of the previous page unchanged, or leave `cursor` out.",
    ),
    ErrorType(
        "bad_request", 400, "The request could not be understood", "Read `detail` and try again."
    ),
    ErrorType(
        "host_not_allowed",
        400,
        "The Host header names a host this service does not answer for",
        "Use the address that `pkforge serve` printed.",
    ),
    ErrorType(
        "cross_origin",
        403,
        "A page of another origin tried to change something",
        "Call the service from its own page or from a program, which sends no Origin header.",
    ),
    ErrorType(
        "route_not_found", 404, "There is nothing at this address", "See `/v1/openapi.json`."
    ),
    ErrorType(
        "problem_not_found",
        404,
        "No such problem",
        "List them with `GET /v1/problems` or `pkforge problem list`.",
    ),
    ErrorType(
        "target_not_found",
        404,
        "No such target",
        "List them with `GET /v1/targets` or `pkforge target list`.",
    ),
    ErrorType("job_not_found", 404, "No such job", "List them with `GET /v1/jobs`."),
    ErrorType(
        "attempt_not_found",
        404,
        "No such attempt",
        "List a job's attempts with `GET /v1/jobs/{id}/attempts`.",
    ),
    ErrorType(
        "evaluation_not_found",
        404,
        "No such evaluation",
        "Use the id that `POST /v1/evaluations` answered with.",
    ),
    ErrorType("error_not_found", 404, "No such error code", "List them with `GET /v1/errors`."),
    ErrorType(
        "method_not_allowed",
        405,
        "This address does not take that method",
        "The `Allow` header lists the methods it takes.",
    ),
    ErrorType(
        "job_already_cancelled",
        409,
        "The job was cancelled before",
        "Nothing to do: follow its events to see it end.",
    ),
    ErrorType(
        "job_finished",
        409,
        "The job has already ended",
        "Nothing to do: read its outcome with `GET /v1/jobs/{id}`.",
    ),
    ErrorType(
        "kernel_not_ready",
        409,
        "The job has no kernel yet",
        "Wait for the job's `job.finished` event.",
    ),
    ErrorType(
        "no_kernel",
        409,
        "The job ended without a correct kernel",
        "Read the attempts' verdicts, then submit again with a larger budget or another policy.",
    ),
    ErrorType(
        "problem_exists",
        409,
        "Another problem has this slug",
        "Change the slug in the problem file.",
    ),
    ErrorType(
        "target_not_available",
        409,
        "No worker here can run jobs on this target",
        "Use the simulated target of the same machine, or a service with GPU workers.",
    ),
    ErrorType(
        "body_too_large",
        413,
        "The body is larger than this service takes",
        "`limit_bytes` says how much it takes.",
    ),
    ErrorType(
        "invalid_request",
        422,
        "The request does not fit the schema",
        "Each entry of `errors` names a field and what is wrong with it.",
    ),
    ErrorType(
        "unknown_problem",
        422,
        "The request names a problem that does not exist",
        "List them with `GET /v1/problems`.",
    ),
    ErrorType(
        "unknown_target",
        422,
        "The request names a target that does not exist",
        "List them with `GET /v1/targets`.",
    ),
    ErrorType(
        "unknown_shape",
        422,
        "The request names a shape the problem does not have",
        "`GET /v1/problems/{slug}` lists the shapes.",
    ),
    ErrorType(
        "unknown_policy",
        422,
        "The request names a policy that does not exist",
        "Use `tuner`, `llm:MODEL`, or `scripted` with a list of candidates.",
    ),
    ErrorType(
        "malformed_candidate",
        422,
        "The candidate cannot be judged as it stands",
        "Read `detail`: it says what is wrong, where, and what to do.",
    ),
    ErrorType(
        "malformed_bundle",
        422,
        "The kernel bundle cannot be read",
        "Send a zip that `GET /v1/jobs/{id}/kernel` gave out, unchanged.",
    ),
    ErrorType(
        "problem_rejected",
        422,
        "The problem file was not admitted",
        "Each entry of `findings` says what to change in the file.",
    ),
    ErrorType(
        "internal_error",
        500,
        "The service failed",
        "Look for `instance` in the service's log and report it.",
    ),
    ErrorType(
        "isolation_unavailable",
        503,
        "Untrusted code cannot be run safely on this machine",
        "Run `pkforge doctor` on the service's machine and do what it says.",
    ),
    ErrorType(
        "busy",
        503,
        "The service is busy with other requests of this kind",
        "Try again after the seconds in `Retry-After`.",
    ),
    ErrorType(
        "infrastructure",
        503,
        "A part of the service failed while it handled the request",
        "Run `pkforge doctor` on the service's machine; then try again.",
    ),
)

ERROR_TYPES: Mapping[str, ErrorType] = MappingProxyType({kind.code: kind for kind in _TYPES})


class ApiError(Exception):
    """Ends a request with the problem document of `code`.

    `detail` is one or two sentences for a person; `extensions` become members of the document.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        **extensions: Any,
    ) -> None:
        super().__init__(detail)
        self.kind = ERROR_TYPES[code]
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        self.extensions = extensions
