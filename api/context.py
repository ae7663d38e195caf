"""What every request needs: the settings, the store, and how the process is to stop."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Annotated, cast

import anyio
from fastapi import Depends, Request

from api.checks import Readiness
from store.settings import Settings
from store.stores import Store

# Loading a stranger's problem file takes seconds of a core; more at once would starve the rest.
_UPLOADS_AT_ONCE = 1


@dataclass
class ServiceContext:
    """One running service. `stopping` is set as soon as the process is asked to end."""

    settings: Settings
    store: Store
    readiness: Readiness
    stopping: threading.Event
    uploads: anyio.CapacityLimiter = field(
        default_factory=lambda: anyio.CapacityLimiter(_UPLOADS_AT_ONCE)
    )


def service_context(request: Request) -> ServiceContext:
    """The context of the service that handles `request`."""
    return cast(ServiceContext, request.app.state.context)


Service = Annotated[ServiceContext, Depends(service_context)]
