"""Problems: those pkforge ships, and those users add as untrusted files."""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Path, Request, Response

from api.context import Service
from api.errors import ApiError
from api.known_problems import find_problem, known_problems, unknown_detail
from api.problem_upload import admit
from api.schemas.common import Page
from api.schemas.problems import ProblemCreate, ProblemRead, ProblemSummary

router = APIRouter(prefix="/problems", tags=["problems"])


@router.get("", operation_id="list_problems")
def list_problems(service: Service) -> Page[ProblemSummary]:
    """List every problem: the catalogue's in order, then those users added, oldest first."""
    with service.store.database.read() as tx:
        known = known_problems(tx)
    fields = set(ProblemSummary.model_fields)
    items = [ProblemSummary(**problem.read.model_dump(include=fields)) for problem in known]
    return Page(items=items, next_cursor=None)


@router.post("", status_code=201, operation_id="create_problem")
async def create_problem(
    body: ProblemCreate, service: Service, request: Request, response: Response
) -> ProblemRead:
    """Add a problem file. It is loaded, described and linted in a sandbox, which takes seconds.

    Refused with 422 and the findings unless trivial candidates fail its check.
    """
    read = await anyio.to_thread.run_sync(admit, service, body, limiter=service.uploads)
    response.headers["Location"] = str(request.url_for("show_problem", name=read.slug))
    return read


@router.get("/{name}", operation_id="show_problem")
def show_problem(
    name: Annotated[str, Path(description="Slug, number or id of the problem.")], service: Service
) -> ProblemRead:
    """Show one problem: its task, tensors and shapes."""
    with service.store.database.read() as tx:
        problem = find_problem(tx, name)
        if problem is None:
            raise ApiError("problem_not_found", unknown_detail(tx, name[:80]))
    return problem.read
