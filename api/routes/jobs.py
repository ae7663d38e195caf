"""Jobs: submitted, listed, shown, cancelled."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from agent.spec import Budget, JobSpec, SpecError, parse_policy
from api.candidates import candidate_of
from api.context import Service
from api.errors import ApiError, FieldError
from api.known_problems import KnownProblem, asked_problem, asked_target
from api.representations import job_detail, job_summary
from api.schemas.common import Page
from api.schemas.jobs import JobCreate, JobRead, JobState, JobSummaryRead
from store.errors import AlreadyCancelledError, AlreadyFinishedError, NotFoundError
from workers.enqueue import enqueue

router = APIRouter(prefix="/jobs", tags=["jobs"])

JobId = Annotated[str, Path(description="Identifier of the job, `job_...`.")]
_CURSOR = re.compile(r"job_[0-9a-z]{26}")


@router.post("", status_code=202, operation_id="create_job")
def create_job(body: JobCreate, service: Service, request: Request, response: Response) -> JobRead:
    """Submit an optimization run. Answers 202 at once; follow its events to see it work."""
    spec, problem = _spec(body, service)
    with service.store.database.write() as tx:
        job_id = tx.jobs.create("optimization", spec.to_json(), problem_id=problem.problem_id).id
    # After the commit: whoever is woken must find the row.
    enqueue(service.settings, job_id, spec.target)
    with service.store.database.read() as tx:
        read = job_detail(tx, tx.jobs.get(job_id))
    response.headers["Location"] = str(request.url_for("show_job", job_id=job_id))
    return read


@router.get("", operation_id="list_jobs")
def list_jobs(
    service: Service,
    limit: Annotated[int, Query(description="Entries a page.", ge=1, le=100)] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
    status: Annotated[JobState | None, Query(description="Only jobs in this state.")] = None,
    problem: Annotated[str | None, Query(description="Only jobs on this problem.")] = None,
) -> Page[JobSummaryRead]:
    """List jobs, newest first."""
    if cursor is not None and not _CURSOR.fullmatch(cursor):
        raise ApiError(
            "invalid_cursor",
            f"{cursor[:80]!r} is not a cursor of this collection.",
            errors=[FieldError("not a cursor", parameter="cursor")],
        )
    with service.store.database.read() as tx:
        rows = tx.jobs.page(
            "optimization", limit=limit + 1, before=cursor, state=status, problem=problem
        )
        items = [job_summary(summary) for summary in tx.jobs.summaries(rows[:limit])]
    return Page(items=items, next_cursor=items[-1].id if len(rows) > limit else None)


@router.get("/{job_id}", operation_id="show_job")
def show_job(job_id: JobId, service: Service) -> JobRead:
    """Show one job."""
    with service.store.database.read() as tx:
        try:
            return job_detail(tx, tx.jobs.get(job_id, "optimization"))
        except NotFoundError:
            raise job_not_found(job_id) from None


@router.post("/{job_id}/cancel", status_code=202, operation_id="cancel_job")
def cancel_job(job_id: JobId, service: Service) -> JobRead:
    """Ask for a job's end. A queued job ends at once, a running one within seconds.

    What it has verified so far stays its result. A second request answers 409.
    """
    with service.store.database.write() as tx:
        try:
            tx.jobs.get(job_id, "optimization")
            return job_detail(tx, tx.jobs.request_cancel(job_id))
        except NotFoundError:
            raise job_not_found(job_id) from None
        except AlreadyCancelledError as error:
            raise ApiError("job_already_cancelled", _sentence(error)) from None
        except AlreadyFinishedError as error:
            raise ApiError("job_finished", _sentence(error)) from None


def job_not_found(job_id: str) -> ApiError:
    """The error for an id that names no job."""
    return ApiError("job_not_found", f"There is no job {job_id[:80]!r}.")


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:] + "."


def _spec(body: JobCreate, service: Service) -> tuple[JobSpec, KnownProblem]:
    """What is asked for, checked as far as it can be without running anything."""
    target = asked_target(service, body.target)
    problem = asked_problem(service, body.problem)
    if body.shape is not None:
        problem.require_shape(body.shape, "#/shape")
    _check_policy(body)
    longest = service.settings.max_job_wall_s
    if body.budget.wall_s > longest:
        raise _invalid("#/budget/wall_s", f"this service runs a job for at most {longest:g} s")
    scripted = [
        candidate_of(candidate, f"#/scripted/{index}")
        for index, candidate in enumerate(body.scripted or ())
    ]
    try:
        spec = JobSpec(
            problem=problem.slug,
            target=str(target),
            policy=body.policy,
            shape=body.shape,
            budget=Budget(**body.budget.model_dump()),
            target_speedup=body.target_speedup,
            seed=body.seed,
            start_from=candidate_of(body.start_from, "#/start_from") if body.start_from else None,
            scripted=tuple(scripted) or None,
        )
    except SpecError as error:
        raise _invalid("#", str(error)) from None
    return spec, problem


def _check_policy(body: JobCreate) -> None:
    pointer = FieldError("not a policy", pointer="#/policy")
    try:
        policy = parse_policy(body.policy)
    except SpecError as error:
        raise ApiError("unknown_policy", _sentence(error), errors=[pointer]) from None
    if policy.kind == "scripted" and policy.argument:
        # A directory here would be one of the service's machine, which a caller must not read.
        detail = "Over HTTP, policy `scripted` takes its candidates from `scripted`, not a folder."
        raise ApiError("unknown_policy", detail, errors=[pointer])
    if (policy.kind == "scripted") != (body.scripted is not None):
        raise _invalid("#/scripted", "goes with policy `scripted`, and that policy needs it")


def _invalid(pointer: str, detail: str) -> ApiError:
    error = FieldError(detail, pointer=pointer)
    return ApiError("invalid_request", f"{pointer}: {detail}.", errors=[error])
