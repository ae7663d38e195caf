"""Submitting, listing, showing and cancelling jobs over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from api.problem_details import MEDIA_TYPE
from store import Settings
from tests.api import jobs_in_store
from tests.api.serving import Api, asgi, problem_of

SPEC: dict[str, Any] = {"problem": "gemm_reducescatter", "target": "sim:h200x4"}
KERNEL = {"language": "pk", "files": {"kernel.cu": jobs_in_store.SOURCE}, "knobs": {}}


def test_a_job_is_accepted_with_its_address(api: Api) -> None:
    response = api.post("/v1/jobs", SPEC | {"problem": "16", "budget": {"attempts": 7}})
    assert response.status_code == 202, response.text
    job = response.json()
    assert response.headers["location"].endswith(f"/v1/jobs/{job['id']}")
    assert job["status"] == "queued"
    assert job["problem"] == "gemm_reducescatter"
    assert job["budget"] == {"attempts": 7, "usd": 5.0, "wall_s": 3600.0}
    assert job["policy"] == "tuner"
    assert api.get(job["links"]["self"]).json() == job


def test_scripted_candidates_and_a_starting_point_are_stored(api: Api) -> None:
    body = SPEC | {"policy": "scripted", "scripted": [KERNEL, KERNEL | {"knobs": {"stages": 4}}]}
    scripted = api.post("/v1/jobs", body).json()
    started = api.post("/v1/jobs", SPEC | {"start_from": KERNEL}).json()
    with api.store.database.read() as tx:
        assert [c["knobs"] for c in tx.jobs.get(scripted["id"]).spec["scripted"]] == [
            {},
            {"stages": 4},
        ]
        assert tx.jobs.get(started["id"]).spec["start_from"]["files"] == KERNEL["files"]


@pytest.mark.parametrize(
    ("change", "code", "pointer"),
    [
        ({"problem": "gemm_reducescater"}, "unknown_problem", "#/problem"),
        ({"target": "sim:h2000x4"}, "unknown_target", "#/target"),
        ({"shape": "m1n1"}, "unknown_shape", "#/shape"),
        ({"policy": "guess"}, "unknown_policy", "#/policy"),
        ({"policy": "llm:"}, "unknown_policy", "#/policy"),
        ({"policy": "scripted:/etc"}, "unknown_policy", "#/policy"),
        ({"policy": "scripted"}, "invalid_request", "#/scripted"),
        ({"scripted": [KERNEL]}, "invalid_request", "#/scripted"),
        ({"budget": {"attempts": 0}}, "invalid_request", "#/budget/attempts"),
        ({"budget": {"wall_s": 2_000_000}}, "invalid_request", "#/budget/wall_s"),
        ({"budget": {"dollars": 1}}, "invalid_request", "#/budget/dollars"),
        ({"target_speedup": -1}, "invalid_request", "#/target_speedup"),
        ({"seed": -1}, "invalid_request", "#/seed"),
        ({"seed": "x" * 100}, "invalid_request", "#/seed"),
        ({"problem": "a\x00b"}, "invalid_request", "#/problem"),
        ({"problem": "x" * 1000}, "invalid_request", "#/problem"),
        ({"start_from": {"files": {}}}, "invalid_request", "#/start_from/files"),
        ({"start_from": {"files": {"a.cu": "x"}}}, "malformed_candidate", "#/start_from"),
        (
            {"start_from": KERNEL | {"knobs": {"stages": 99}}},
            "malformed_candidate",
            "#/start_from",
        ),
        (
            {"policy": "scripted", "scripted": [KERNEL, KERNEL | {"knobs": {"no": 1}}]},
            "malformed_candidate",
            "#/scripted/1",
        ),
        ({"start_from": {"files": {"kernel.cu": "a\x00b"}}}, "malformed_candidate", "#/start_from"),
        (
            {"start_from": {"files": {"../../etc/passwd": "x"}}},
            "malformed_candidate",
            "#/start_from",
        ),
    ],
)
def test_a_bad_request_says_which_field_and_why(
    api: Api, change: dict[str, Any], code: str, pointer: str
) -> None:
    document = problem_of(api.post("/v1/jobs", SPEC | change), code, 422)
    assert [error["pointer"] for error in document["errors"]] == [pointer]
    assert api.get("/v1/jobs").json()["items"] == []


def test_a_target_that_needs_gpus_is_refused_where_there_are_none(api: Api) -> None:
    document = problem_of(
        api.post("/v1/jobs", SPEC | {"target": "cuda:h200x4"}), "target_not_available", 409
    )
    assert "sim:h200x4" in document["detail"]


def test_an_unknown_problem_names_near_ones(api: Api) -> None:
    response = api.post("/v1/jobs", SPEC | {"problem": "gemm_reducescater"})
    assert "gemm_reducescatter" in response.json()["detail"]


@pytest.mark.parametrize(
    ("body", "code", "status"),
    [
        (b"", "invalid_request", 422),
        (b"{", "invalid_json", 400),
        (b"\xff\xfe{}", "invalid_json", 400),
        (b'{"problem": "a", "target": ' + b"[" * 50_000, "invalid_json", 400),
        (b'{"seed": ' + b"9" * 5000 + b"}", "invalid_json", 400),
        (b'{"problem": "16", "target": "sim:h200x4", "target_speedup": NaN}', None, 422),
        (b'{"problem": "\\ud800", "target": "sim:h200x4"}', "invalid_request", 422),
        (b"[]", "invalid_request", 422),
        (b"null", "invalid_request", 422),
        (b'"text"', "invalid_request", 422),
    ],
)
def test_a_body_that_is_no_request_is_refused(
    api: Api, body: bytes, code: str | None, status: int
) -> None:
    headers = {"content-type": "application/json"}
    response = api.request("POST", "/v1/jobs", content=body, headers=headers)
    problem_of(response, code or "invalid_request", status)


def test_a_body_of_another_type_is_refused(api: Api) -> None:
    """A page of another site may send text/plain without asking first; JSON it may not."""
    response = api.request(
        "POST",
        "/v1/jobs",
        content=b'{"problem": "16", "target": "sim:h200x4"}',
        headers={"content-type": "text/plain"},
    )
    problem_of(response, "invalid_request", 422)


def test_jobs_are_listed_newest_first_in_pages(api: Api) -> None:
    made = [jobs_in_store.submit(api.store) for _ in range(5)]
    seen: list[str] = []
    cursor = None
    while True:
        params = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = api.get("/v1/jobs", params=params).json()
        assert len(page["items"]) <= 2
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == made[::-1]


def test_a_list_can_be_narrowed(api: Api) -> None:
    job_id = jobs_in_store.succeeded(api.store)
    jobs_in_store.submit(api.store)
    [item] = api.get("/v1/jobs", params={"status": "succeeded"}).json()["items"]
    assert item["id"] == job_id
    assert item["best"] == {
        "number": 2,
        "candidate_us": 500.0,
        "speedup": 2.0,
        "kind": "simulated",
    }
    assert api.get("/v1/jobs", params={"problem": "allreduce"}).json()["items"] == []


@pytest.mark.parametrize("cursor", ["x", "job_1", "att_" + "0" * 26, "' OR 1=1 --"])
def test_a_foreign_cursor_is_refused(api: Api, cursor: str) -> None:
    problem_of(api.get("/v1/jobs", params={"cursor": cursor}), "invalid_cursor", 400)


def test_bad_parameters_are_named(api: Api) -> None:
    document = problem_of(api.get("/v1/jobs", params={"limit": 0}), "invalid_request", 422)
    assert [error["parameter"] for error in document["errors"]] == ["limit"]


def test_a_finished_job_shows_its_best_and_its_cost(api: Api) -> None:
    job = api.get(f"/v1/jobs/{jobs_in_store.succeeded(api.store)}").json()
    assert (job["status"], job["stop_reason"], job["detail"]) == (
        "succeeded",
        "exhausted",
        "The end.",
    )
    assert job["best"]["baseline_us"] == pytest.approx(jobs_in_store.BASELINE_US)
    assert job["best"]["roofline_us"] == pytest.approx(jobs_in_store.ROOFLINE_US)
    assert job["best"]["bottleneck"] == "nvlink"
    assert job["spent"]["attempts"] == 3
    assert job["kernel_sha256"]


def test_a_failed_job_says_why(api: Api) -> None:
    job_id = jobs_in_store.submit(api.store)
    claimed = jobs_in_store.claim(api.store, job_id)
    error = {"reason": "worker_lost", "summary": "three workers were lost"}
    jobs_in_store.finish(
        api.store,
        claimed,
        None,
        state="failed",
        stop_reason="infra",
        best_number=None,
        error=error,
    )
    assert api.get(f"/v1/jobs/{job_id}").json()["detail"] == "three workers were lost"


@pytest.mark.parametrize("job_id", ["job_1", "job_" + "0" * 26, "x" * 5000, "%00", "a%2Fb"])
def test_an_unknown_job_is_not_found(api: Api, job_id: str) -> None:
    response = api.get(f"/v1/jobs/{job_id}")
    assert response.status_code == 404
    assert response.headers["content-type"] == MEDIA_TYPE
    assert response.json()["code"] in {"job_not_found", "route_not_found"}


def test_an_evaluation_is_no_job(api: Api) -> None:
    body = SPEC | {"candidate": KERNEL}
    evaluation = api.post("/v1/evaluations", body).json()
    problem_of(api.get(f"/v1/jobs/{evaluation['id']}"), "job_not_found", 404)
    problem_of(api.post(f"/v1/jobs/{evaluation['id']}/cancel"), "job_not_found", 404)


def test_cancelling_twice_is_a_conflict(api: Api) -> None:
    job_id = jobs_in_store.submit(api.store)
    response = api.post(f"/v1/jobs/{job_id}/cancel")
    assert response.status_code == 202
    assert response.json()["status"] == "cancelled"
    document = problem_of(api.post(f"/v1/jobs/{job_id}/cancel"), "job_already_cancelled", 409)
    assert job_id in document["detail"]


def test_cancelling_a_running_job_is_a_request(api: Api) -> None:
    job_id = jobs_in_store.submit(api.store)
    jobs_in_store.claim(api.store, job_id)
    job = api.post(f"/v1/jobs/{job_id}/cancel").json()
    assert (job["status"], job["cancel_requested"]) == ("running", True)


def test_a_finished_job_cannot_be_cancelled(api: Api) -> None:
    job_id = jobs_in_store.succeeded(api.store)
    problem_of(api.post(f"/v1/jobs/{job_id}/cancel"), "job_finished", 409)


def test_cancelling_nothing_is_not_found(api: Api) -> None:
    problem_of(api.post("/v1/jobs/job_1/cancel"), "job_not_found", 404)


def test_the_same_answers_on_every_database(settings: Settings) -> None:
    with asgi(settings) as api:
        job_id = jobs_in_store.succeeded(api.store)
        assert api.get("/v1/jobs").json()["items"][0]["id"] == job_id
        assert api.get(f"/v1/jobs/{job_id}").json()["best"]["number"] == 2
        assert len(api.get(f"/v1/jobs/{job_id}/attempts").json()["items"]) == 3
        assert api.post("/v1/jobs", SPEC).status_code == 202
