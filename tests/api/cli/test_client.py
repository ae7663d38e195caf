"""The client: errors as exit codes, events resumed after a lost connection."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from api.cli import client as module
from api.cli.client import ServiceClient
from api.cli.exits import CliError, ExitCode

Handler = Callable[[http.server.BaseHTTPRequestHandler], None]


@contextlib.contextmanager
def answering(handle: Handler) -> Iterator[str]:
    """A real HTTP server that answers every request with `handle`."""

    class Requests(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            handle(self)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def send(request: http.server.BaseHTTPRequestHandler, status: int, kind: str, body: str) -> None:
    request.send_response(status)
    request.send_header("Content-Type", kind)
    request.end_headers()
    request.wfile.write(body.encode())


def event(seq: int, type: str) -> str:
    document = {"seq": seq, "type": type, "at": "2026-01-01T00:00:00Z", "payload": {}}
    return f"event: {type}\ndata: {json.dumps(document)}\nid: {seq}\n\n"


def test_events_go_on_where_the_connection_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    asked: list[str | None] = []

    def handle(request: http.server.BaseHTTPRequestHandler) -> None:
        last = request.headers["Last-Event-ID"]
        asked.append(last)
        streams = {
            "0": ": hello\n\n" + event(1, "job.queued") + event(2, "job.started"),
            "2": event(3, "attempt.proposed") + 'event: reconnect\ndata: {"after": 3}\n\n',
            "3": "data: ",
        }
        if len(asked) == 4:
            streams["3"] = event(4, "job.finished")
        send(request, 200, "text/event-stream", streams[str(last)])

    with answering(handle) as url, ServiceClient(url) as client:
        seen = [event.seq for event in client.events("job_1")]
    assert seen == [1, 2, 3, 4]
    assert asked == ["0", "2", "3", "3"]


def test_a_service_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    monkeypatch.setattr(module, "_SILENCE_S", 0.2)
    with ServiceClient("http://127.0.0.1:9") as client, pytest.raises(CliError) as failed:
        list(client.events("job_1"))
    assert failed.value.code is ExitCode.SERVICE


@pytest.mark.parametrize("body", ["<html>a proxy's page</html>", "[]", '{"no": "code"}'])
def test_something_else_that_answers_is_not_taken_for_the_service(body: str) -> None:
    with (
        answering(lambda request: send(request, 502, "text/html", body)) as url,
        ServiceClient(url) as client,
        pytest.raises(CliError) as failed,
    ):
        client.get("/v1/jobs")
    assert failed.value.code is ExitCode.SERVICE
    assert "check the address" in str(failed.value)


def test_a_problem_document_becomes_a_message() -> None:
    document = {
        "code": "problem_rejected",
        "status": 422,
        "title": "t",
        "detail": "The lint found 1 thing.",
        "advice": "Do this.",
        "errors": [{"pointer": "#/source", "detail": "is wrong"}],
        "findings": [
            {"check": "zeros", "shape": "tiny", "world_size": 2, "message": "zeros pass"},
        ],
    }
    with (
        answering(lambda r: send(r, 422, "application/problem+json", json.dumps(document))) as url,
        ServiceClient(url) as client,
        pytest.raises(CliError) as failed,
    ):
        client.get("/")
    assert failed.value.code is ExitCode.USAGE
    assert str(failed.value).splitlines() == [
        "The lint found 1 thing.",
        "  #/source: is wrong",
        "  - zeros (shape tiny on W=2): zeros pass",
        "Do this.",
    ]


def test_pages_are_followed_up_to_the_limit() -> None:
    def handle(request: http.server.BaseHTTPRequestHandler) -> None:
        first = "cursor" not in request.path
        page = {"items": [1, 2] if first else [3, 4], "next_cursor": "c" if first else None}
        send(request, 200, "application/json", json.dumps(page))

    with answering(handle) as url, ServiceClient(url) as client:
        assert list(client.pages("/x", 3)) == [1, 2, 3, 4][:3]
        assert list(client.pages("/x", 100)) == [1, 2, 3, 4]


# --- what answers and is no service


def streamed(part: bytes, times: int, **headers: str) -> Handler:
    """Sends the same bytes many times over, until it may stop."""

    def handle(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        for name, value in {"content-type": "application/json", **headers}.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(times):
                request.wfile.write(part)

    return handle


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ANSWER_BYTES", 1 << 20)
    for ask in (ServiceClient.get, ServiceClient.download):
        with (
            answering(streamed(b" " * 65536, 10_000)) as url,
            ServiceClient(url) as client,
            pytest.raises(CliError, match="more than 1048576 bytes") as caught,
        ):
            ask(client, "/v1/targets")
        assert caught.value.code == ExitCode.SERVICE
    with answering(streamed(b"[]" + b" " * 65536, 1)) as url, ServiceClient(url) as client:
        assert client.get("/v1/targets") == []


def test_a_packed_answer_is_not_unpacked() -> None:
    packed = gzip.compress(b"[" + b" " * (64 << 20) + b"]")
    with (
        answering(streamed(packed, 1, content_encoding="gzip")) as url,
        ServiceClient(url) as client,
        pytest.raises(CliError, match="packed answer"),
    ):
        client.get("/v1/targets")


@pytest.mark.parametrize("body", [b"[" * 100_000, b"9" * 5000, b"\xff", b"", b"{"])
def test_an_answer_that_is_not_json_is_no_service(body: bytes) -> None:
    with (
        answering(streamed(body, 1)) as url,
        ServiceClient(url) as client,
        pytest.raises(CliError, match="not as a pkforge service does"),
    ):
        client.get("/v1/targets")


@pytest.mark.parametrize("part", [b"data: " + b"x" * 4000, b"data: x\n" * 500])
def test_an_event_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch, part: bytes) -> None:
    monkeypatch.setattr(module, "_EVENT_BYTES", 1 << 18)
    stream = streamed(part, 100_000, content_type="text/event-stream")
    with (
        answering(stream) as url,
        ServiceClient(url) as client,
        pytest.raises(CliError, match="an event of more than"),
    ):
        list(client.events("job_1"))


@pytest.mark.parametrize("data", ["[" * 100_000, "{", "1", '{"seq": 1}', '["seq"]'])
def test_an_event_of_another_form_is_given_up(data: str) -> None:
    stream = streamed(f"data: {data}\n\n".encode(), 1, content_type="text/event-stream")
    with (
        answering(stream) as url,
        ServiceClient(url) as client,
        pytest.raises(CliError, match="an event of another form"),
    ):
        list(client.events("job_1"))
