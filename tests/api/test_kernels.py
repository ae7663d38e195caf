"""Downloading the kernel of a job."""

from __future__ import annotations

import base64
import hashlib

from tests.api import jobs_in_store
from tests.api.serving import Api, problem_of


def test_the_bundle_comes_with_its_name_and_checksum(api: Api) -> None:
    job_id = jobs_in_store.succeeded(api.store)
    response = api.get(f"/v1/jobs/{job_id}/kernel")
    assert response.content == b"a zip"
    assert response.headers["content-type"] == "application/zip"
    digest = base64.b64encode(hashlib.sha256(b"a zip").digest()).decode()
    assert response.headers["repr-digest"] == f"sha-256=:{digest}:"
    name = f"gemm-reducescatter-sim-h200x4-{job_id.replace('_', '-')}.zip"
    assert response.headers["content-disposition"] == f'attachment; filename="{name}"'
    assert response.headers["x-content-type-options"] == "nosniff"


def test_a_job_that_runs_has_no_kernel_yet(api: Api) -> None:
    job_id = jobs_in_store.submit(api.store)
    document = problem_of(api.get(f"/v1/jobs/{job_id}/kernel"), "kernel_not_ready", 409)
    assert "queued" in document["detail"]


def test_a_job_without_a_correct_attempt_says_why(api: Api) -> None:
    job_id = jobs_in_store.submit(api.store)
    claimed = jobs_in_store.claim(api.store, job_id)
    jobs_in_store.finish(
        api.store,
        claimed,
        None,
        state="failed",
        stop_reason="budget_attempts",
        best_number=None,
    )
    document = problem_of(api.get(f"/v1/jobs/{job_id}/kernel"), "no_kernel", 409)
    assert "budget_attempts" in document["detail"]


def test_an_unknown_job_has_no_kernel(api: Api) -> None:
    problem_of(api.get("/v1/jobs/job_1/kernel"), "job_not_found", 404)
