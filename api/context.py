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


@dataclass
class ServiceContext:
    """One running service.

    `stopping` is set as soon as the process is asked to end; whoever looks at an uploaded problem
    holds `uploads`.
    """

    settings: Settings
    store: Store
    readiness: Readiness
    stopping: threading.Event
    uploads: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(1))


def service_context(request: Request) -> ServiceContext:
    """The context of the service that handles `request`."""
    return cast(ServiceContext, request.app.state.context)


Service = Annotated[ServiceContext, Depends(service_context)]
