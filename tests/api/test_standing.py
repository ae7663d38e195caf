"""A verdict that no longer counts says so, and the kernel can be judged anew."""

from __future__ import annotations

import pytest

from sandbox import versions
from tests.api import jobs_in_store
from tests.api.serving import Api, problem_of


def test_a_verdict_counts_until_what_decides_changes(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = versions.JUDGE_VERSION
    job_id = jobs_in_store.succeeded(api.store, versions={"judge": before})
    assert api.get(f"/v1/jobs/{job_id}").json()["best"]["void"] == []
    monkeypatch.setattr(versions, "JUDGE_VERSION", "99")
    best = api.get(f"/v1/jobs/{job_id}").json()["best"]
    assert best["void"] == [f"the judge was {before} and is 99"]


def test_another_problem_or_machine_voids_it(api: Api) -> None:
    said = {"problem": "an earlier one", "sheet": "h200x4@before"}
    job_id = jobs_in_store.succeeded(api.store, versions=said)
    reasons = api.get(f"/v1/jobs/{job_id}").json()["best"]["void"]
    assert [reason.split(" was ")[0] for reason in reasons] == ["the problem", "the hardware sheet"]


def test_a_kernel_is_judged_anew_as_an_evaluation(api: Api) -> None:
    job_id = jobs_in_store.succeeded(api.store)
    links = api.get(f"/v1/jobs/{job_id}").json()["links"]
    response = api.post(links["verify"])
    assert response.status_code == 202
    read = response.json()
    assert response.headers["location"].endswith(read["links"]["self"])
    assert (read["problem"], read["verdict"]) == ("gemm_reducescatter", None)
    assert api.get(read["links"]["self"]).json()["id"] == read["id"]


def test_without_a_kernel_there_is_nothing_to_judge(api: Api) -> None:
    job_id = jobs_in_store.submit(api.store)
    problem_of(api.post(f"/v1/jobs/{job_id}/kernel/verify"), "kernel_not_ready", 409)
    problem_of(api.post("/v1/jobs/job_1/kernel/verify"), "job_not_found", 404)
