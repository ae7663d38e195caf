"""The winning kernel of a job as a bundle."""

from __future__ import annotations

import base64
import re

from fastapi import APIRouter, Request, Response

from api.context import Service
from api.errors import ApiError
from api.representations import evaluation_read
from api.routes.jobs import JobId, job_not_found
from api.schemas.evaluations import EvaluationRead
from store.candidates import load_candidate
from store.errors import NotFoundError
from store.models import Job
from workers.enqueue import enqueue
from workers.evaluation import EvaluationSpec

router = APIRouter(prefix="/jobs/{job_id}/kernel", tags=["jobs"])

MEDIA_TYPE = "application/zip"


@router.get(
    "",
    operation_id="download_kernel",
    response_class=Response,
    responses={
        200: {
            "description": "The bundle: source, manifest, torch module, README.",
            "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
def download_kernel(job_id: JobId, service: Service) -> Response:
    """Download the kernel a job ended with. 409 says why there is none."""
    with service.store.database.read() as tx:
        try:
            job = tx.jobs.get(job_id, "optimization")
        except NotFoundError:
            raise job_not_found(job_id) from None
    if job.bundle_sha256 is None:
        raise _no_kernel(job)
    data = service.store.artifacts.get(job.bundle_sha256)
    digest = base64.b64encode(bytes.fromhex(job.bundle_sha256)).decode("ascii")
    headers = {
        "Content-Disposition": f'attachment; filename="{_filename(job)}"',
        "Repr-Digest": f"sha-256=:{digest}:",
        "ETag": f'"{job.bundle_sha256}"',
    }
    return Response(data, media_type=MEDIA_TYPE, headers=headers)


@router.post("/verify", status_code=202, operation_id="verify_kernel")
def verify_kernel(
    job_id: JobId, service: Service, request: Request, response: Response
) -> EvaluationRead:
    """Have the kernel a job ended with judged anew, with a fresh seed, as an evaluation.

    For a kernel whose verdict is void, or for anybody who wants to see it again. 409 says why there
    is none.
    """
    with service.store.database.write() as tx:
        try:
            job = tx.jobs.get(job_id, "optimization")
        except NotFoundError:
            raise job_not_found(job_id) from None
        if job.bundle_sha256 is None:
            raise _no_kernel(job)
        [summary] = tx.jobs.summaries([job])
        if summary.best is None:
            raise _no_kernel(job)
        best = tx.attempts.get(job_id, summary.best.number)
        shapes = tuple(timing.shape for timing in tx.attempts.timings(best.id))
        candidate = load_candidate(service.store.artifacts, best)
        spec = EvaluationSpec(job.problem, job.target, candidate, shapes or None)
        created = tx.jobs.create("evaluation", spec.to_json(), problem_id=job.problem_id).id
    enqueue(service.settings, created, spec.target)
    with service.store.database.read() as tx:
        read = evaluation_read(tx, tx.jobs.get(created))
    location = request.url_for("show_evaluation", evaluation_id=created)
    response.headers["Location"] = str(location)
    return read


def _no_kernel(job: Job) -> ApiError:
    if not job.finished:
        return ApiError("kernel_not_ready", f"Job {job.id} is {job.state}: it has no kernel yet.")
    reason = f" ({job.stop_reason})" if job.stop_reason else ""
    return ApiError(
        "no_kernel", f"Job {job.id} {job.state}{reason} without a fully judged correct attempt."
    )


def _filename(job: Job) -> str:
    plain = re.sub(r"[^A-Za-z0-9]+", "-", f"{job.problem}-{job.target}-{job.id}")
    return f"{plain.strip('-')}.zip"
