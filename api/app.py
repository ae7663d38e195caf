"""The web application: routes, guards, and the lifespan that runs the embedded workers."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Collection
from contextlib import ExitStack, asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api import problem_details
from api.binding import LOOPBACK_NAMES
from api.checks import Readiness
from api.context import ServiceContext
from api.middleware import Guard
from api.routes import (
    attempts,
    errors,
    evaluations,
    events,
    health,
    jobs,
    kernels,
    page,
    problems,
    targets,
)
from api.schemas.common import ProblemDocument
from api.version import VERSION
from store.settings import Settings
from store.stores import open_store
from workers.dispatcher import Dispatcher

_PROBLEM_REF = f"#/components/schemas/{ProblemDocument.__name__}"
_V1 = (problems, targets, jobs, attempts, events, kernels, evaluations, errors)


def create_app(settings: Settings, *, allow_remote: bool = False, work: bool = True) -> FastAPI:
    """The service as an ASGI application.

    Start-up migrates the database and, when no broker is set and `work` is true, runs the jobs in
    this service's own workers; shutdown stops them. `allow_remote` answers for any host name.
    """
    stopping = threading.Event()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with ExitStack() as stack:
            store = stack.enter_context(open_store(settings, migrate=True))
            app.state.context = ServiceContext(
                settings, store, Readiness(settings, store.database, store.artifacts), stopping
            )
            if work and settings.embedded:
                stack.enter_context(Dispatcher(settings))
            yield
            stopping.set()

    app = FastAPI(
        title="pkforge",
        version=VERSION,
        summary="Turns a slow multi-GPU PyTorch + NCCL operator into a proved, faster kernel.",
        lifespan=lifespan,
        openapi_url="/v1/openapi.json",
        # The interactive pages load scripts from elsewhere, which the page's policy forbids.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={
            "default": {
                "model": ProblemDocument,
                "description": "Any error: a problem document.",
            }
        },
    )
    app.state.stopping = stopping
    app.state.max_body_bytes = settings.max_body_bytes
    problem_details.install(app)
    app.add_exception_handler(events.StreamOverError, events.stream_over)
    for module in _V1:
        # Here and not for the whole application, whose own limit answers in plain text.
        app.include_router(module.router, prefix="/v1", max_body_size=settings.max_body_bytes)
    app.include_router(health.router)
    app.include_router(page.router)
    app.add_middleware(
        Guard,
        max_body_bytes=settings.max_body_bytes,
        allowed_hosts=_allowed_hosts(settings, allow_remote),
    )
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _allowed_hosts(settings: Settings, allow_remote: bool) -> Collection[str] | None:
    return None if allow_remote else LOOPBACK_NAMES | {settings.host}


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The schema with errors under the one media type they really have."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title, version=app.version, summary=app.summary, routes=app.routes
        )
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"]["default"]["content"] = {
                    problem_details.MEDIA_TYPE: {"schema": {"$ref": _PROBLEM_REF}}
                }
        app.openapi_schema = schema
    return app.openapi_schema
