"""What each error code means: where the `type` of a problem document points."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path

from api.errors import ERROR_TYPES, ApiError
from api.schemas.common import ErrorTypeRead, Page

router = APIRouter(prefix="/errors", tags=["errors"])


@router.get("", operation_id="list_errors")
def list_errors() -> Page[ErrorTypeRead]:
    """List every kind of error the service can answer with."""
    items = [ErrorTypeRead(**asdict(kind)) for kind in ERROR_TYPES.values()]
    return Page(items=items, next_cursor=None)


@router.get("/{code}", operation_id="show_error")
def show_error(code: Annotated[str, Path(description="A stable error code.")]) -> ErrorTypeRead:
    """Explain one error code."""
    if code not in ERROR_TYPES:
        raise ApiError("error_not_found", f"There is no error code {code!r}.")
    return ErrorTypeRead(**asdict(ERROR_TYPES[code]))
