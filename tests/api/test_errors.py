"""Error codes: documented, explained, and what every kind of wrong request is answered with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.errors import ERROR_TYPES
from store import Settings
from store.errors import DatabaseUnavailableError
from tests.api.serving import Api, asgi, problem_of

DOCUMENT = Path(__file__).parents[2] / "docs" / "api.md"
SOURCES = Path(__file__).parents[2] / "api"


def test_the_document_lists_every_code_with_its_status() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (\d{3}) \| \S", DOCUMENT.read_text(), re.MULTILINE)
    assert listed == [(kind.code, str(kind.status)) for kind in ERROR_TYPES.values()]


def test_every_code_is_used() -> None:
    text = "\n".join(path.read_text() for path in SOURCES.rglob("*.py") if path.name != "errors.py")
    text += (SOURCES / "routes" / "errors.py").read_text()
    unused = [code for code in ERROR_TYPES if f'"{code}"' not in text]
    assert not unused


def test_the_type_of_an_error_leads_to_its_explanation(api: Api) -> None:
    listed = {item["code"] for item in api.get("/v1/errors").json()["items"]}
    assert listed == set(ERROR_TYPES)
    document = problem_of(api.get("/v1/jobs/job_1"), "job_not_found", 404)
    explained = api.get(document["type"]).json()
    assert explained["title"] == document["title"]
    problem_of(api.get("/v1/errors/nothing"), "error_not_found", 404)


@pytest.mark.parametrize(
    ("method", "path", "code", "status"),
    [
        ("GET", "/nothing", "route_not_found", 404),
        ("GET", "/v1", "route_not_found", 404),
        ("GET", "/v1/jobs/", "route_not_found", 404),
        ("GET", "/../../etc/passwd", "route_not_found", 404),
        ("GET", "/app.py", "route_not_found", 404),
        ("GET", "/docs", "route_not_found", 404),
        ("PUT", "/v1/jobs", "method_not_allowed", 405),
        ("DELETE", "/v1/jobs/job_1", "method_not_allowed", 405),
        ("POST", "/", "method_not_allowed", 405),
        ("POST", "/healthz", "method_not_allowed", 405),
        ("BREW", "/v1/jobs", "method_not_allowed", 405),
    ],
)
def test_what_is_not_served_is_a_problem_document(
    api: Api, method: str, path: str, code: str, status: int
) -> None:
    response = api.request(method, path)
    problem_of(response, code, status)
    if status == 405:
        assert response.headers["allow"]


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[Api]:
    """An application with two routes that fail."""
    with asgi(Settings(home=tmp_path)) as api:

        def fail() -> None:
            raise RuntimeError("the secret reason")

        def lose() -> None:
            raise DatabaseUnavailableError("the database is locked")

        api.app.add_api_route("/fails", fail)
        api.app.add_api_route("/loses", lose)
        yield api


def test_a_fault_of_the_service_tells_nothing_but_the_request(broken: Api) -> None:
    response = broken.get("/fails")
    problem_of(response, "internal_error", 500)
    assert "secret" not in response.text


def test_a_lost_database_asks_to_try_again(broken: Api) -> None:
    response = broken.get("/loses")
    problem_of(response, "infrastructure", 503)
    assert response.headers["retry-after"]
