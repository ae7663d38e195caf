"""RFC 9457 problem documents: the one shape of every error answer, and what makes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from api.errors import ERROR_TYPES, ApiError, ErrorType, FieldError
from store.errors import ArtifactError, DatabaseUnavailableError

MEDIA_TYPE = "application/problem+json"
_SHOWN_ERRORS = 50
_NAME = 200

_BY_STATUS = {404: "route_not_found", 405: "method_not_allowed", 413: "body_too_large"}


def problem_response(
    kind: ErrorType,
    detail: str,
    *,
    instance: str | None,
    errors: Sequence[FieldError] = (),
    headers: Mapping[str, str] | None = None,
    extensions: Mapping[str, Any] | None = None,
) -> Response:
    """The answer for one error; `instance` is the request's id, also sent as `X-Request-Id`."""
    document: dict[str, Any] = {
        "type": f"/v1/errors/{kind.code}",
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "code": kind.code,
        "advice": kind.advice,
    }
    if instance is not None:
        document["instance"] = instance
    if errors:
        document["errors"] = [error.to_json() for error in errors]
    document.update(extensions or {})
    # A lone surrogate from the request must not turn the error answer itself into a failure.
    body = json.dumps(document, ensure_ascii=True, default=str).encode("ascii")
    return Response(body, kind.status, dict(headers or {}), MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Make every error of `app` a problem document."""
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(DatabaseUnavailableError, _infrastructure_error)
    app.add_exception_handler(ArtifactError, _infrastructure_error)


def request_id(request: Request) -> str | None:
    """The id the middleware gave this request."""
    return getattr(request.state, "request_id", None)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return problem_response(
        error.kind,
        error.detail,
        instance=request_id(request),
        errors=error.errors,
        headers=error.headers,
        extensions=error.extensions,
    )


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(entry["type"] == "json_invalid" for entry in found):
        reason = found[0].get("ctx", {}).get("error", "it does not parse")
        position = found[0]["loc"][-1]
        detail = f"The body stops being JSON at character {position}: {reason}."
        return problem_response(ERROR_TYPES["invalid_json"], detail, instance=request_id(request))
    # As many as a person reads: a body of 4 MB can have more mistakes than bytes fit an answer.
    errors = [_field_error(entry["loc"], entry["msg"]) for entry in found[:_SHOWN_ERRORS]]
    first = errors[0]
    where = first.pointer or first.parameter or "the request"
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return problem_response(
        ERROR_TYPES["invalid_request"],
        f"{where}: {first.detail}{more}.",
        instance=request_id(request),
        errors=errors,
    )


def _field_error(location: Sequence[str | int], message: str) -> FieldError:
    """pydantic's location as a JSON pointer in URI fragment form, or as a parameter's name."""
    origin, *path = (_cut(step) for step in location)
    if origin != "body":
        return FieldError(message, parameter=".".join(str(part) for part in path) or str(origin))
    steps = [str(part).replace("~", "~0").replace("/", "~1") for part in path]
    return FieldError(message, pointer="#" + "".join(f"/{step}" for step in steps))


def _cut(step: str | int) -> str | int:
    return step if isinstance(step, int) or len(step) <= _NAME else f"{step[:_NAME]}..."


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 400 and "parsing the body" in str(error.detail):
        kind, detail = ERROR_TYPES["invalid_json"], "The body could not be read as JSON."
    else:
        kind = ERROR_TYPES[_BY_STATUS.get(error.status_code, "bad_request")]
        detail = _http_detail(request, error)
    extensions = {}
    if kind.code == "body_too_large":
        extensions["limit_bytes"] = request.app.state.max_body_bytes
    return problem_response(
        kind, detail, instance=request_id(request), headers=error.headers, extensions=extensions
    )


def _http_detail(request: Request, error: HTTPException) -> str:
    where = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return f"{where}: this service has no such address."
    if error.status_code == 405:
        allowed = (error.headers or {}).get("allow", "other methods")
        return f"{where}: this address takes {allowed}."
    if error.status_code == 413:
        return f"The body is larger than {request.app.state.max_body_bytes} bytes."
    return str(error.detail)


async def _infrastructure_error(request: Request, error: Exception) -> Response:
    return problem_response(
        ERROR_TYPES["infrastructure"],
        str(error),
        instance=request_id(request),
        headers={"Retry-After": "5"},
    )
