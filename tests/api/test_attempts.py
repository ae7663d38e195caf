"""Attempts over HTTP: listed, shown with source, verdict and difference."""

from __future__ import annotations

import pytest

from tests.api import jobs_in_store
from tests.api.jobs_in_store import candidate, claim, judge, propose, submit, verdict
from tests.api.serving import Api, problem_of


def test_attempts_are_listed_in_order(api: Api) -> None:
    job_id = jobs_in_store.succeeded(api.store)
    items = api.get(f"/v1/jobs/{job_id}/attempts").json()["items"]
    assert [(item["number"], item["parent"], item["status"]) for item in items] == [
        (1, None, "correct"),
        (2, 1, "correct"),
        (3, 2, "build_failed"),
    ]
    assert [item["candidate_us"] for item in items] == [900.0, 500.0, None]
    assert {item["kind"] for item in items} == {"simulated", None}
    assert items[1]["speedup"] == pytest.approx(2.0)


def test_pages_of_attempts_follow_each_other(api: Api) -> None:
    job_id = jobs_in_store.succeeded(api.store)
    path = f"/v1/jobs/{job_id}/attempts"
    first = api.get(path, params={"limit": 2}).json()
    second = api.get(path, params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [item["number"] for item in first["items"] + second["items"]] == [1, 2, 3]
    assert second["next_cursor"] is None


def test_an_attempt_shows_what_it_changed(api: Api) -> None:
    job_id = jobs_in_store.succeeded(api.store)
    second = api.get(f"/v1/jobs/{job_id}/attempts/2").json()
    assert second["files"] == {"kernel.cu": jobs_in_store.SOURCE}
    assert second["knob_changes"] == {"stages": [3, 4]}
    assert second["diff"] == ""
    assert second["verdict"]["timings"][0]["bottleneck"] == "nvlink"
    third = api.get(f"/v1/jobs/{job_id}/attempts/3").json()
    assert "+oops" in third["diff"].splitlines()
    assert third["summary"] == "build_failed: the summary"


def test_the_first_attempt_has_no_difference(api: Api) -> None:
    first = api.get(f"/v1/jobs/{jobs_in_store.succeeded(api.store)}/attempts/1").json()
    assert (first["parent"], first["diff"], first["knob_changes"]) == (None, "", {})


def test_an_attempt_that_is_not_judged_yet_is_pending(api: Api) -> None:
    job_id = submit(api.store)
    claim(api.store, job_id)
    propose(api.store, job_id, candidate(stages=4))
    attempt = api.get(f"/v1/jobs/{job_id}/attempts/1").json()
    assert (attempt["status"], attempt["verdict"], attempt["summary"]) == ("pending", None, None)
    assert attempt["knobs"] == {"stages": 4}


def test_hostile_text_arrives_as_it_is(api: Api) -> None:
    """It is the page's and the terminal's duty to show it harmlessly; JSON carries it whole."""
    hostile = '</script><img src=x onerror=alert(1)>\x1b[2J"\u202e'
    what = candidate(jobs_in_store.SOURCE + f"// {hostile}\n")
    job_id = submit(api.store)
    claim(api.store, job_id)
    number = propose(api.store, job_id, what, hypothesis=hostile)
    given = verdict(what, None, "crashed", evidence={"summary": hostile})
    judge(api.store, job_id, number, given)
    response = api.get(f"/v1/jobs/{job_id}/attempts/1")
    assert response.json()["hypothesis"] == hostile
    assert response.json()["summary"] == hostile
    assert hostile in response.json()["files"]["kernel.cu"]
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "code", "status"),
    [
        ("/v1/jobs/job_1/attempts", "job_not_found", 404),
        ("/v1/jobs/job_1/attempts/1", "job_not_found", 404),
        ("/v1/jobs/{job}/attempts/99", "attempt_not_found", 404),
        ("/v1/jobs/{job}/attempts/0", "invalid_request", 422),
        ("/v1/jobs/{job}/attempts/one", "invalid_request", 422),
        ("/v1/jobs/{job}/attempts?cursor=-1", "invalid_cursor", 400),
        ("/v1/jobs/{job}/attempts?limit=1000", "invalid_request", 422),
    ],
)
def test_what_is_not_there_is_said(api: Api, path: str, code: str, status: int) -> None:
    job_id = jobs_in_store.succeeded(api.store)
    problem_of(api.get(path.format(job=job_id)), code, status)


def test_a_lost_source_is_an_infrastructure_error(api: Api) -> None:
    job_id = jobs_in_store.succeeded(api.store)
    with api.store.database.read() as tx:
        sha256 = tx.attempts.get(job_id, 1).source_sha256
    api.store.artifacts.path(sha256).unlink()
    problem_of(api.get(f"/v1/jobs/{job_id}/attempts/1"), "infrastructure", 503)
