"""Targets: the machines a kernel can be made fast for."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path

from api.errors import ApiError
from api.schemas.common import Page
from api.schemas.targets import TargetRead, TargetSummary
from pk_runtime.target import Target, TargetError, all_targets, parse_target
from sandbox.gpu.machine import unavailable

router = APIRouter(prefix="/targets", tags=["targets"])


@router.get("", operation_id="list_targets")
def list_targets() -> Page[TargetSummary]:
    """List every target, simulated ones first."""
    return Page(items=[TargetSummary(**_summary(t)) for t in all_targets()], next_cursor=None)


@router.get("/{name}", operation_id="show_target")
def show_target(
    name: Annotated[str, Path(description="Name of the target, such as `sim:h200x4`.")],
) -> TargetRead:
    """Show a target with its whole hardware sheet."""
    try:
        target = parse_target(name)
    except TargetError as error:
        raise ApiError("target_not_found", str(error)) from None
    return TargetRead(**_summary(target), sheet=asdict(target.sheet))


def _summary(target: Target) -> dict[str, Any]:
    return {
        "name": str(target),
        "backend": target.backend,
        "kind": target.timing_kind,
        "world_size": target.world_size,
        "title": target.sheet.title,
        "unavailable_here": unavailable(target),
    }
