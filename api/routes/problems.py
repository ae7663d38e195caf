"""Problems: those pkforge ships, and those users add as untrusted files."""

from __future__ import annotations

from typing import Annotated

import anyio
import anyio.to_thread
from fastapi import APIRouter, Path, Request, Response

from api.context import Service
from api.errors import ApiError
from api.known_problems import find_problem, known_problems, unknown_detail
from api.problem_upload import admit
from api.schemas.common import Page
from api.schemas.problems import ProblemCreate, ProblemRead, ProblemSummary

router = APIRouter(prefix="/problems", tags=["problems"])

UPLOAD_WAIT_S = 60.0


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
    read = await _one_at_a_time(service, body)
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


async def _one_at_a_time(service: Service, body: ProblemCreate) -> ProblemRead:
    """Admit the file once no other is being looked at; `busy` when that takes too long.

    Loading a stranger's file keeps a core busy for seconds, and the jobs need the cores.
    """
    try:
        with anyio.fail_after(UPLOAD_WAIT_S):
            await service.uploads.acquire()
    except TimeoutError:
        detail = f"Other problem files have been looked at for {UPLOAD_WAIT_S:g} s."
        raise ApiError("busy", detail, headers={"Retry-After": "30"}) from None
    try:
        return await anyio.to_thread.run_sync(admit, service, body)
    finally:
        service.uploads.release()
