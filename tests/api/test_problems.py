"""Problems over HTTP: listed, shown, and uploaded as untrusted files."""

from __future__ import annotations

from typing import Any

import pytest

from api import problem_upload
from api.errors import ApiError
from api.problem_upload import require_free
from api.routes import problems
from problems.registry import catalogue
from sandbox import problem_host
from sandbox.isolation import IsolationUnavailable
from tests.api import problem_files
from tests.api.serving import Api, problem_of


def upload(api: Api, source: str) -> Any:
    return api.post("/v1/problems", {"source": source, "filename": "mine.py"})


def test_the_catalogue_is_listed(api: Api) -> None:
    items = {item["slug"]: item for item in api.get("/v1/problems").json()["items"]}
    assert {"allreduce", "alltoall", "gemm_reducescatter"} <= set(items)
    assert items["gemm_reducescatter"]["number"] == 16
    assert {item["origin"] for item in items.values()} == {"catalogue"}


@pytest.mark.parametrize("name", ["16", "gemm_reducescatter"])
def test_a_problem_is_shown_by_number_or_slug(api: Api, name: str) -> None:
    problem = api.get(f"/v1/problems/{name}").json()
    assert problem["slug"] == "gemm_reducescatter"
    assert (problem["inputs"], problem["outputs"], problem["dtype"]) == (
        ["a", "b"],
        ["c"],
        "bfloat16",
    )
    kinds = {shape["name"]: shape["kind"] for shape in problem["shapes"]}
    assert (kinds["tiny"], kinds["m8192n8192k8192"]) == ("check", "bench")
    assert "a[M, K/W]" in problem["statement"]
    assert problem["scales"] == [-10, 10]
    found = problem["calibration"]
    assert found["gap"] >= 10 <= found["signal"]
    noise = {each["variant"]: each for each in found["noise"]}
    assert set(noise) == {"rounded", "ring", "reversed", "rotated", "fp32"}
    assert all(0 < each["max"] < 1 and 0 < each["rms"] < 1 for each in noise.values())


@pytest.mark.parametrize("name", ["gemm_reducescater", "999", "x" * 500, "prb_1"])
def test_an_unknown_problem_is_not_found(api: Api, name: str) -> None:
    document = problem_of(api.get(f"/v1/problems/{name}"), "problem_not_found", 404)
    assert len(document["detail"]) < 1000


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "#/source"),
        ({"source": ""}, "#/source"),
        ({"source": "x" * 300_000}, "#/source"),
        ({"source": 7}, "#/source"),
        ({"source": "x", "filename": "a\nb"}, "#/filename"),
    ],
)
def test_a_body_without_a_file_is_refused(api: Api, body: dict[str, Any], pointer: str) -> None:
    document = problem_of(api.post("/v1/problems", body), "invalid_request", 422)
    assert [error["pointer"] for error in document["errors"]] == [pointer]


def test_without_a_sandbox_no_file_is_loaded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(**_: bool) -> None:
        raise IsolationUnavailable("bwrap is missing", "Install bubblewrap.")

    monkeypatch.setattr(problem_upload, "choose", unavailable)
    document = problem_of(upload(api, problem_files.good()), "isolation_unavailable", 503)
    assert "Install bubblewrap." in document["detail"]


def test_one_file_is_looked_at_at_a_time(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "UPLOAD_WAIT_S", 0.05)
    uploads = api.app.state.context.uploads
    uploads.acquire_nowait()
    response = upload(api, problem_files.good())
    problem_of(response, "busy", 503)
    assert int(response.headers["retry-after"]) > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_admitted_problem_can_be_used(api: Api) -> None:
    response = upload(api, problem_files.good())
    assert response.status_code == 201, response.text
    problem = response.json()
    assert response.headers["location"].endswith("/v1/problems/scaled_allreduce")
    assert (problem["slug"], problem["origin"], problem["number"]) == (
        "scaled_allreduce",
        "uploaded",
        None,
    )
    assert api.get("/v1/problems/scaled_allreduce").json() == problem
    assert problem["calibration"]["gap"] >= 10 <= problem["calibration"]["signal"]
    assert "fp32" in {noise["variant"] for noise in problem["calibration"]["noise"]}
    assert api.get("/v1/problems").json()["items"][-1]["slug"] == "scaled_allreduce"
    job = api.post("/v1/jobs", {"problem": "scaled_allreduce", "target": "sim:h200x4"})
    assert job.status_code == 202, job.text
    problem_of(upload(api, problem_files.good()), "problem_exists", 409)


@pytest.mark.slow
def test_the_catalogues_names_are_taken(api: Api) -> None:
    document = problem_of(upload(api, problem_files.renamed("allreduce")), "problem_rejected", 422)
    assert "taken by the catalogue" in document["findings"][0]["message"]


def test_what_the_sandbox_answers_cannot_take_a_name_of_the_catalogue() -> None:
    """The description is made beside the stranger's code, which may answer in its place."""
    require_free("scaled_allreduce")
    with pytest.raises(ApiError) as refused:
        require_free("allreduce")
    assert refused.value.kind.code == "problem_exists"


@pytest.mark.slow
def test_a_problem_that_trivial_kernels_pass_is_refused(api: Api) -> None:
    document = problem_of(upload(api, problem_files.trivial()), "problem_rejected", 422)
    assert document["findings"]
    assert all(finding["message"] for finding in document["findings"])
    assert len(api.get("/v1/problems").json()["items"]) == len(catalogue())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "said"),
    [
        (problem_files.RAISES, "on purpose"),
        (problem_files.NO_PYTHON, "problem.py"),
        (problem_files.NO_PROBLEM, "Problem"),
        (problem_files.KILLS_ITSELF, "signal 9"),
        (problem_files.SNOOPS, "SEEN []"),
    ],
)
def test_a_bad_file_is_refused_and_does_no_harm(api: Api, source: str, said: str) -> None:
    document = problem_of(upload(api, source), "problem_rejected", 422)
    assert said in document["findings"][0]["message"]
    assert len(api.get("/v1/problems").json()["items"]) == len(catalogue())


@pytest.mark.slow
def test_a_file_that_loops_is_stopped(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem_host, "WALL_S", {"describe": 1.0})
    document = problem_of(upload(api, problem_files.LOOPS), "problem_rejected", 422)
    assert "endless loop" in document["findings"][0]["message"]
    assert api.get("/healthz").status_code == 200
