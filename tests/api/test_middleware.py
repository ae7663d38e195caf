"""What is refused before any route sees it, and what every answer carries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.middleware import LINGER_BYTES
from store import Settings
from tests.api.serving import Api, asgi, problem_of

JOB = {"problem": "gemm_reducescatter", "target": "sim:h200x4"}


def test_every_answer_carries_its_safety_headers(api: Api) -> None:
    for path in ("/", "/app.js", "/v1/jobs", "/nothing", "/healthz"):
        headers = api.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("host", ["127.0.0.1:8770", "localhost", "[::1]:8770", "LOCALHOST:1"])
def test_names_of_this_machine_are_answered(api: Api, host: str) -> None:
    assert api.get("/healthz", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[", "a b"])
def test_a_foreign_name_is_refused(api: Api, host: str) -> None:
    """A page can have its own name resolved to 127.0.0.1; the Host header still tells on it."""
    problem_of(api.get("/v1/jobs", headers={"host": host}), "host_not_allowed", 400)


def test_any_name_is_answered_when_remote_access_is_allowed(tmp_path: Path) -> None:
    with asgi(Settings(home=tmp_path), allow_remote=True) as api:
        assert api.get("/healthz", headers={"host": "gpu-box.lan"}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://127.0.0.1:1", "null", "https://localhost"]
)
def test_another_origin_changes_nothing(api: Api, origin: str) -> None:
    response = api.post("/v1/jobs", JOB, headers={"origin": origin})
    problem_of(response, "cross_origin", 403)
    assert api.get("/v1/jobs").json()["items"] == []


def test_the_own_origin_and_programs_may_change_things(api: Api) -> None:
    assert api.post("/v1/jobs", JOB, headers={"origin": "http://127.0.0.1"}).status_code == 202
    assert api.post("/v1/jobs", JOB).status_code == 202


def test_a_body_that_is_announced_too_large_is_not_read(api: Api) -> None:
    limit = api.app.state.max_body_bytes
    response = api.post("/v1/jobs", content=b"x", headers={"content-length": str(limit + 1)})
    assert problem_of(response, "body_too_large", 413)["limit_bytes"] == limit


def test_a_body_that_grows_too_large_is_not_read_on(api: Api) -> None:
    limit = api.app.state.max_body_bytes
    sent = 0

    async def endless() -> Iterator[bytes]:  # type: ignore[misc]
        nonlocal sent
        while True:
            sent += 65536
            yield b" " * 65536

    headers = {"content-type": "application/json"}
    response = api.request("POST", "/v1/jobs", content=endless(), headers=headers)
    assert problem_of(response, "body_too_large", 413)["limit_bytes"] == limit
    assert sent <= limit + LINGER_BYTES + 2 * 65536


@pytest.mark.parametrize("length", ["-1", "x", "9" * 400, "\u0663"])
def test_a_strange_length_breaks_nothing(api: Api, length: str) -> None:
    headers = {"content-length": length.encode(), "content-type": "application/json"}
    response = api.request("POST", "/v1/jobs", content=b"{}", headers=headers)
    assert response.status_code in {413, 422}
