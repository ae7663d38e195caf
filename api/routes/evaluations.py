"""Evaluations: one candidate judged once, no optimizer."""

from __future__ import annotations

import base64
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from api.candidates import candidate_of
from api.context import Service
from api.errors import ApiError, FieldError
from api.known_problems import asked_problem, asked_target
from api.representations import evaluation_read
from api.reproduction import Reproduction, reproduction
from api.schemas.evaluations import EvaluationCreate, EvaluationRead
from pk_runtime.bundle import BundleError, parse_bundle
from pk_runtime.candidate import Candidate
from store.errors import NotFoundError
from workers.enqueue import enqueue
from workers.evaluation import EvaluationSpec

router = APIRouter(prefix="/evaluations", tags=["evaluations"])


@router.post("", status_code=202, operation_id="create_evaluation")
def create_evaluation(
    body: EvaluationCreate, service: Service, request: Request, response: Response
) -> EvaluationRead:
    """Ask for one verdict. Answers 202 at once; poll the evaluation or follow its events."""
    candidate, told = _candidate(body)
    problem = asked_problem(service, _named(body.problem, told.problem, "problem"))
    target = asked_target(service, _named(body.target, told.target, "target"))
    shapes = told.shapes if body.shapes is None else tuple(body.shapes)
    for shape in shapes or ():
        problem.require_shape(shape, "#/shapes")
    spec = EvaluationSpec(
        problem=problem.slug,
        target=str(target),
        candidate=candidate,
        shapes=shapes,
        seed=told.seed if body.seed is None else body.seed,
        depth=body.depth,
    )
    with service.store.database.write() as tx:
        created = tx.jobs.create("evaluation", spec.to_json(), problem_id=problem.problem_id)
        evaluation_id = created.id
    enqueue(service.settings, evaluation_id, spec.target)
    with service.store.database.read() as tx:
        read = evaluation_read(tx, tx.jobs.get(evaluation_id))
    location = request.url_for("show_evaluation", evaluation_id=evaluation_id)
    response.headers["Location"] = str(location)
    return read


@router.get("/{evaluation_id}", operation_id="show_evaluation")
def show_evaluation(
    evaluation_id: Annotated[str, Path(description="Identifier of the evaluation, `evl_...`.")],
    service: Service,
) -> EvaluationRead:
    """Show one evaluation and, once it is judged, its verdict."""
    with service.store.database.read() as tx:
        try:
            return evaluation_read(tx, tx.jobs.get(evaluation_id, "evaluation"))
        except NotFoundError:
            detail = f"There is no evaluation {evaluation_id[:80]!r}."
            raise ApiError("evaluation_not_found", detail) from None


def _candidate(body: EvaluationCreate) -> tuple[Candidate, Reproduction]:
    """The candidate and, when it came as a bundle, how it was judged before."""
    if (body.candidate is None) == (body.bundle is None):
        where = [FieldError("give either `candidate` or `bundle`", pointer="#")]
        raise ApiError("invalid_request", "Give either `candidate` or `bundle`.", errors=where)
    if body.candidate is not None:
        return candidate_of(body.candidate, "#/candidate"), Reproduction()
    try:
        data = base64.b64decode(body.bundle or "", validate=True)
    except ValueError:
        where = [FieldError("not base64", pointer="#/bundle")]
        raise ApiError("invalid_request", "#/bundle: not base64.", errors=where) from None
    try:
        bundle = parse_bundle(data)
    except BundleError as error:
        where = [FieldError(str(error), pointer="#/bundle")]
        raise ApiError("malformed_bundle", f"The bundle: {error}.", errors=where) from None
    return bundle.candidate, reproduction(bundle.manifest)


def _named(given: str | None, in_bundle: str | None, field: str) -> str:
    value = given or in_bundle
    if value is None:
        where = [FieldError("required with a `candidate`", pointer=f"#/{field}")]
        raise ApiError("invalid_request", f"#/{field}: required.", errors=where)
    return value
