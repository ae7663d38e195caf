"""Requests made to break a reader: each gets a problem document, and the service goes on."""

from __future__ import annotations

import base64
import gzip
import http.client
import io
import json
import socket
import zipfile
from collections.abc import Iterator

import httpx
import pytest

from tests.api.serving import Process, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

JOB = {"problem": "16", "target": "sim:h200x4"}
JSON = {"content-type": "application/json"}
# As deep as Python's reader goes, and beyond that.
DEPTHS = (900, 100_000, 1_900_000)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A service that answers requests and runs no jobs."""
    with serving(tmp_path_factory.mktemp("serving"), "--no-workers") as process:
        yield process


def archive(name: str, data: bytes) -> str:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(name, data)
    return base64.b64encode(stream.getvalue()).decode()


def nested(depth: int) -> bytes:
    return b'{"problem": ' + b"[" * depth + b"]" * depth + b"}"


def within(field: str, value: str) -> bytes:
    return json.dumps(JOB)[:-1].encode() + f', "{field}": {value}}}'.encode()


BODIES: dict[str, tuple[bytes, dict[str, str]]] = {
    **{f"{depth} lists in each other": (nested(depth), JSON) for depth in DEPTHS},
    **{f"{depth} objects in each other": (b'{"a":' * (depth // 3), JSON) for depth in DEPTHS},
    "a number of 100,000 digits": (within("seed", "9" * 100_000), JSON),
    "a number beyond every float": (within("target_speedup", "1e400"), JSON),
    "a number with a long exponent": (within("target_speedup", "1e-" + "9" * 10_000), JSON),
    "100,000 fields": (json.dumps({f"f{n}": n for n in range(100_000)}).encode(), JSON),
    "a field with a name of a megabyte": (json.dumps({"f" * 1_000_000: 1}).encode(), JSON),
    "a packed body": (gzip.compress(json.dumps(JOB).encode()), JSON | {"content-encoding": "gzip"}),
    "a packed bomb": (gzip.compress(b" " * (64 << 20)), JSON | {"content-encoding": "gzip"}),
    "a form with a file": (
        b'--x\r\nContent-Disposition: form-data; name="problem"; filename="../../x"\r\n\r\n1\r\n'
        b"--x--\r\n",
        {"content-type": "multipart/form-data; boundary=x"},
    ),
    "bytes that are no UTF-8": (b'{"problem": "\xc3\x28"}', JSON),
    "a zero byte": (b'{"problem": "16\\u0000"}', JSON),
    "UTF-16": (json.dumps(JOB | {"problem": 1}).encode("utf-16"), JSON),
    "a text for a list": (within("scripted", '"' + "x" * 1_000_000 + '"'), JSON),
}


def alive(service: Process) -> None:
    """The control: the service answers, and takes an honest request."""
    assert httpx.get(f"{service.url}/healthz", timeout=10).status_code == 200
    accepted = httpx.post(f"{service.url}/v1/jobs", json=JOB, timeout=10)
    assert accepted.status_code == 202, accepted.text


def problem_of(response: httpx.Response) -> str:
    assert response.headers["content-type"] == "application/problem+json", response.text[:200]
    document = response.json()
    assert document["status"] == response.status_code
    assert len(response.content) < 200_000  # what was sent does not come back whole
    code: str = document["code"]
    return code


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/evaluations", "/v1/problems"])
def test_bodies_that_no_client_sends(service: Process, path: str) -> None:
    for what, (body, headers) in BODIES.items():
        response = httpx.post(service.url + path, content=body, headers=headers, timeout=30)
        assert response.status_code in {400, 413, 415, 422}, (what, response.text[:200])
        assert problem_of(response) in {"invalid_json", "invalid_request", "body_too_large"}, what
    alive(service)


def test_the_first_of_many_mistakes_are_told_and_all_are_counted(service: Process) -> None:
    for count, told in ((2, 2), (1000, 50)):
        body = JOB | {f"f{n}": n for n in range(count)}
        document = httpx.post(f"{service.url}/v1/jobs", json=body, timeout=30).json()
        assert len(document["errors"]) == told
        assert f"(and {count - 1} more)" in document["detail"]


@pytest.mark.parametrize(
    ("bundle", "words"),
    [
        (archive("source/bomb.h", b"\0" * (256 << 20)), "too many bytes"),
        (archive("../../kernel.cu", b"x"), "outside the bundle"),
        (archive("/etc/kernel.cu", b"x"), "outside the bundle"),
        (archive("source/\N{SNOWMAN}\n.h", b"x"), "illegal file name"),
        (archive("manifest.json", b"[" * 1_000_000), "manifest.json"),
        (archive("manifest.json", b"{}"), "manifest.json"),
        (base64.b64encode(gzip.compress(b"x" * 1000)).decode(), "not a zip file"),
        ("A" * 3_000_000, "not a zip file"),
        ("====", "base64"),
        ("\N{SNOWMAN}", "base64"),
    ],
)
def test_bundles_that_are_none(service: Process, bundle: str, words: str) -> None:
    response = httpx.post(f"{service.url}/v1/evaluations", json={"bundle": bundle}, timeout=30)
    assert response.status_code == 422
    assert problem_of(response) in {"malformed_bundle", "invalid_request"}
    assert words in response.json()["detail"]
    alive(service)


def test_headers_without_end_are_given_up(service: Process) -> None:
    host, port = service.url.removeprefix("http://").split(":")
    for header in (b"X-%d: y\r\n", b"X: %d" + b"y" * 1000):
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            sent = 0
            try:
                for number in range(100_000):
                    sent += connection.send(header % number)
            except OSError:
                pass  # it has closed the connection
            assert sent < 64 << 20
    alive(service)


def test_paths_and_queries_that_no_client_sends(service: Process) -> None:
    connection = http.client.HTTPConnection(service.url.removeprefix("http://"), timeout=20)
    odd = ("/v1/jobs/%00", "/v1/jobs/" + "x" * 5000, "/v1/jobs/..%2f..%2fetc%2fpasswd",
           "/v1/jobs?cursor=%ff%fe", "/v1/jobs?limit=" + "9" * 5000, "/v1/problems/%ed%a0%80",
           "/v1/jobs?cursor=" + "A" * 20_000, "/..%2f..%2fetc/passwd")  # fmt: skip
    for path in odd:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        assert response.status in {400, 404, 414, 422}, (path[:60], response.status, body[:200])
        assert b"root:" not in body
    connection.close()
    alive(service)
