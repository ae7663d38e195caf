"""Whether the process lives, and whether the service can do its work."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Response
from starlette.status import HTTP_503_SERVICE_UNAVAILABLE

from api.checks import all_required_ok
from api.context import Service
from api.schemas.health import CheckRead, HealthRead, ReadyRead
from api.version import VERSION

router = APIRouter(tags=["health"])


@router.get("/healthz", operation_id="show_health")
async def show_health() -> HealthRead:
    """Say that the process answers. Looks at nothing else, so that it cannot fail for them."""
    return HealthRead(status="ok", version=VERSION)


@router.get(
    "/readyz",
    operation_id="show_readiness",
    responses={503: {"model": ReadyRead, "description": "Something is missing; it says what."}},
)
def show_readiness(service: Service, response: Response) -> ReadyRead:
    """Say whether jobs can be taken and run: database, artifacts, disk, sandbox."""
    checks = service.readiness.checks()
    ready = all_required_ok(checks)
    if not ready:
        response.status_code = HTTP_503_SERVICE_UNAVAILABLE
    reads = [
        CheckRead(**{name: value for name, value in asdict(check).items() if name != "required"})
        for check in checks
    ]
    return ReadyRead(
        ready=ready, failed=[check.name for check in checks if not check.ok], checks=reads
    )
