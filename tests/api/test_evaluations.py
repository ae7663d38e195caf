"""Evaluations over HTTP: one candidate, or a bundle, judged once."""

from __future__ import annotations

import base64
import io
import zipfile
from typing import Any

import pytest

from pk_runtime.bundle import bundle_bytes
from tests.api import jobs_in_store
from tests.api.serving import Api, problem_of

KERNEL = {"language": "pk", "files": {"kernel.cu": jobs_in_store.SOURCE}, "knobs": {"stages": 4}}
BODY: dict[str, Any] = {
    "problem": "gemm_reducescatter",
    "target": "sim:h200x4",
    "candidate": KERNEL,
}


def bundle(**changes: Any) -> str:
    what = jobs_in_store.candidate(stages=4)
    verdict = jobs_in_store.verdict(what, 500.0)
    manifest = {
        "problem": "gemm_reducescatter",
        "target": "sim:h200x4",
        "verdict": verdict.to_json(),
        "lineage": [],
    }
    return base64.b64encode(bundle_bytes(what, manifest | changes)).decode()


def stored_spec(api: Api, evaluation_id: str) -> dict[str, Any]:
    with api.store.database.read() as tx:
        spec: dict[str, Any] = tx.jobs.get(evaluation_id).spec
        return spec


def test_a_candidate_is_accepted_with_its_address(api: Api) -> None:
    response = api.post("/v1/evaluations", BODY | {"seed": 7, "depth": "quick"})
    assert response.status_code == 202, response.text
    evaluation = response.json()
    assert response.headers["location"].endswith(evaluation["links"]["self"])
    assert (evaluation["status"], evaluation["verdict"]) == ("queued", None)
    assert api.get(evaluation["links"]["self"]).json() == evaluation
    spec = stored_spec(api, evaluation["id"])
    assert (spec["seed"], spec["depth"], spec["candidate"]) == (7, "quick", KERNEL)


def test_a_bundle_is_judged_as_it_was_judged_before(api: Api) -> None:
    response = api.post("/v1/evaluations", {"bundle": bundle()})
    assert response.status_code == 202, response.text
    spec = stored_spec(api, response.json()["id"])
    assert (spec["problem"], spec["target"]) == ("gemm_reducescatter", "sim:h200x4")
    assert (spec["seed"], spec["shapes"]) == (7, ["m8192n8192k8192"])
    assert spec["candidate"] == KERNEL


def test_what_is_given_wins_over_the_bundle(api: Api) -> None:
    response = api.post("/v1/evaluations", {"bundle": bundle(), "seed": 9, "problem": "16"})
    assert stored_spec(api, response.json()["id"])["seed"] == 9


def test_a_judged_evaluation_shows_its_verdict(api: Api) -> None:
    evaluation_id = api.post("/v1/evaluations", BODY).json()["id"]
    claimed = jobs_in_store.claim(api.store, evaluation_id)
    what = jobs_in_store.candidate(stages=4)
    number = jobs_in_store.propose(api.store, evaluation_id, what, phase="confirm")
    given = jobs_in_store.verdict(what, 500.0)
    jobs_in_store.judge(api.store, evaluation_id, number, given)
    jobs_in_store.finish(api.store, claimed, None, best_number=1, stop_reason=None)
    evaluation = api.get(f"/v1/evaluations/{evaluation_id}").json()
    assert evaluation["status"] == "succeeded"
    assert evaluation["verdict"] == given.to_json()


@pytest.mark.parametrize(
    ("change", "code", "pointer"),
    [
        ({"candidate": None}, "invalid_request", "#"),
        ({"bundle": "AAAA"}, "invalid_request", "#"),
        ({"problem": None}, "invalid_request", "#/problem"),
        ({"target": None}, "invalid_request", "#/target"),
        ({"problem": "nothing"}, "unknown_problem", "#/problem"),
        ({"target": "sim:nothing"}, "unknown_target", "#/target"),
        ({"shapes": ["m1"]}, "unknown_shape", "#/shapes"),
        ({"depth": "deep"}, "invalid_request", "#/depth"),
        ({"candidate": KERNEL | {"files": {"x.cu": ""}}}, "malformed_candidate", "#/candidate"),
        ({"candidate": KERNEL | {"language": "c"}}, "invalid_request", "#/candidate/language"),
    ],
)
def test_a_bad_request_says_which_field_and_why(
    api: Api, change: dict[str, Any], code: str, pointer: str
) -> None:
    document = problem_of(api.post("/v1/evaluations", BODY | change), code, 422)
    assert [error["pointer"] for error in document["errors"]] == [pointer]


def zip_bomb() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", b"0" * (64 << 20))
    return stream.getvalue()


def climbing_zip() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("../../etc/cron.d/x", b"x")
    return stream.getvalue()


@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04 not really", zip_bomb(), climbing_zip(), b"\x1f\x8b" * 100]
)
def test_a_bad_bundle_is_refused(api: Api, data: bytes) -> None:
    body = {"bundle": base64.b64encode(data).decode()}
    document = problem_of(api.post("/v1/evaluations", body), "malformed_bundle", 422)
    assert document["errors"][0]["pointer"] == "#/bundle"


def test_a_bundle_that_was_changed_is_refused(api: Api) -> None:
    data = base64.b64decode(bundle())
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, content + b"// more" if name.startswith("source/") else content)
    body = {"bundle": base64.b64encode(stream.getvalue()).decode()}
    problem_of(api.post("/v1/evaluations", body), "malformed_bundle", 422)


def test_a_bundle_that_is_not_base64_is_refused(api: Api) -> None:
    document = problem_of(api.post("/v1/evaluations", {"bundle": "###"}), "invalid_request", 422)
    assert document["errors"][0]["pointer"] == "#/bundle"


def test_an_unknown_evaluation_is_not_found(api: Api) -> None:
    problem_of(api.get("/v1/evaluations/evl_1"), "evaluation_not_found", 404)
    job_id = jobs_in_store.submit(api.store)
    problem_of(api.get(f"/v1/evaluations/{job_id}"), "evaluation_not_found", 404)
