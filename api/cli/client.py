"""The command line's HTTP client: one service address, errors as `CliError`, resumable events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from api.cli.exits import CliError, ExitCode

_CONNECT_S = 5.0
_REQUEST_S = 120.0
# The service pings idle streams every 15 s, so a longer silence is a dead connection.
_SILENCE_S = 40.0
_RETRY_S = 1.0
# Several times the longest answer of a service, a page of verdicts: whatever else answers at an
# address may send without end.
_ANSWER_BYTES = 64 << 20
_EVENT_BYTES = 4 << 20

_EXIT_BY_CODE = {
    "no_kernel": ExitCode.NOT_CORRECT,
    "kernel_not_ready": ExitCode.NOT_CORRECT,
    "unknown_problem": ExitCode.NOT_FOUND,
    "unknown_target": ExitCode.NOT_FOUND,
}


@dataclass(frozen=True)
class Event:
    """One entry of a job's event log."""

    seq: int
    type: str
    at: str
    payload: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The object `watch --json` prints, one a line."""
        return {"seq": self.seq, "type": self.type, "at": self.at, "payload": dict(self.payload)}


class ServiceClient:
    """Talks to one pkforge service. Every failure is a `CliError` with the documented exit code."""

    def __init__(self, url: str) -> None:
        self.url = _checked(url).rstrip("/")
        timeout = httpx.Timeout(_REQUEST_S, connect=_CONNECT_S)
        # The service is this machine or one the user named: a proxy setting is for neither.
        # Nothing is sent packed, so that nothing unpacks to more than was sent.
        headers = {"Accept-Encoding": "identity"}
        self._http = httpx.Client(
            base_url=self.url, timeout=timeout, trust_env=False, headers=headers
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def get(self, path: str, **params: str | int | None) -> Any:
        """The JSON document at `path`; parameters that are None are left out."""
        given = {name: value for name, value in params.items() if value is not None}
        return _document(self._answer(self._http.build_request("GET", path, params=given)))

    def post(self, path: str, body: Any = None, *, within_s: float = _REQUEST_S) -> Any:
        """Post `body` as JSON (nothing when None) and return the answer's document."""
        timeout = httpx.Timeout(within_s, connect=_CONNECT_S)
        given = {} if body is None else {"json": body}
        request = self._http.build_request("POST", path, timeout=timeout, **given)
        return _document(self._answer(request))

    def download(self, path: str) -> tuple[bytes, httpx.Headers]:
        """The bytes at `path` and the headers that came with them."""
        response = self._answer(self._http.build_request("GET", path))
        if response.is_error:
            _document(response)
        return response.content, response.headers

    def pages(self, path: str, limit: int, **params: str | int | None) -> Iterator[Any]:
        """Items of a paged collection, newest first, at most `limit`."""
        cursor: str | None = None
        while limit > 0:
            page = self.get(path, limit=min(limit, 100), cursor=cursor, **params)
            yield from page["items"][:limit]
            limit -= len(page["items"])
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def events(
        self, job_id: str, *, after: int = 0, deadline: float | None = None
    ) -> Iterator[Event]:
        """The job's events after sequence number `after`, until its terminal event.

        Reconnects from the last event seen. `deadline` is on the monotonic clock: past it the
        iterator raises `CliError(TIMEOUT)`. When the service stays away for `_SILENCE_S`, raises
        `CliError(SERVICE)`.
        """
        last_contact = time.monotonic()
        while True:
            try:
                for event in self._stream(job_id, after, deadline):
                    last_contact = time.monotonic()
                    if event is None:
                        continue
                    after = event.seq
                    yield event
                    if event.type == "job.finished":
                        return
                last_contact = time.monotonic()
            except httpx.TransportError as error:
                if time.monotonic() - last_contact > _SILENCE_S:
                    raise self._unreachable(error) from None
            _check(deadline)
            time.sleep(_RETRY_S)

    def _stream(self, job_id: str, after: int, deadline: float | None) -> Iterator[Event | None]:
        """One connection's events; None stands for a ping, so that the caller sees life."""
        headers = {"Last-Event-ID": str(after), "Accept": "text/event-stream"}
        timeout = httpx.Timeout(_SILENCE_S, connect=_CONNECT_S)
        if deadline is not None:
            timeout.read = min(_SILENCE_S, max(0.1, deadline - time.monotonic()))
        path = f"/v1/jobs/{job_id}/events"
        with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.is_error:
                response.read()
                _document(response)
            data: list[str] = []
            for line in self._lines(response):
                _check(deadline)
                if line.startswith("data:"):
                    data.append(line[5:].removeprefix(" "))
                elif line == "" and data:
                    event = self._event("\n".join(data))
                    data.clear()
                    if event is not None:
                        yield event
                elif line.startswith(":"):
                    yield None

    def _lines(self, response: httpx.Response) -> Iterator[str]:
        """The lines of a stream; `CliError` for an event that never ends."""
        event, rest = 0, b""
        for part in response.iter_raw():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                event = event + len(line) if line.strip() else 0
                yield line.decode("utf-8", "replace").removesuffix("\r")
            if event + len(rest) > _EVENT_BYTES:
                raise self._strange(f"sent an event of more than {_EVENT_BYTES} bytes")

    def _event(self, data: str) -> Event | None:
        """The event in one data field; None for the stream's own notices, which have no seq."""
        try:
            document = json.loads(data)
            if "seq" not in document:
                return None
            return Event(document["seq"], document["type"], document["at"], document["payload"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise self._strange("sent an event of another form") from None

    def _answer(self, request: httpx.Request) -> httpx.Response:
        """The whole answer to a request; `CliError` for one that no service would give."""
        with self._explained(), closing(self._http.send(request, stream=True)) as response:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise self._strange("sent a packed answer, which was not asked for")
            content = bytearray()
            for part in response.iter_raw():
                content += part
                if len(content) > _ANSWER_BYTES:
                    raise self._strange(f"sent more than {_ANSWER_BYTES} bytes")
            return httpx.Response(
                response.status_code,
                headers=response.headers,
                content=bytes(content),
                request=request,
            )

    def _strange(self, what: str) -> CliError:
        return CliError(
            ExitCode.SERVICE,
            f"{self.url} {what}, and not as a pkforge service does; check the address",
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException as error:
            raise CliError(
                ExitCode.SERVICE,
                f"the service at {self.url} did not answer in time ({type(error).__name__}); "
                f"look at its log, or try again",
            ) from None
        except httpx.TransportError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> CliError:
        return CliError(
            ExitCode.SERVICE,
            f"no service answers at {self.url} ({error}); start one with `pkforge serve`, "
            f"or name another with --url or PKFORGE_URL",
        )


def _checked(url: str) -> str:
    """`url` if it can be asked; `CliError` otherwise."""
    try:
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname and (parts.port or 1) > 0:
            return url
    except ValueError:
        pass
    raise CliError(ExitCode.USAGE, f"{url!r} is not the address of a service: use http://HOST:PORT")


def _check(deadline: float | None) -> None:
    if deadline is not None and time.monotonic() > deadline:
        raise CliError(ExitCode.TIMEOUT, "the time given with --timeout has passed")


def _document(response: httpx.Response) -> Any:
    try:
        document = response.json()
    except (ValueError, RecursionError):
        document = None
    if not response.is_error and document is not None:
        return document
    if not isinstance(document, dict) or "code" not in document:
        raise CliError(
            ExitCode.SERVICE,
            f"{response.request.url} answered {response.status_code} and not as a pkforge "
            f"service does; check the address",
        )
    raise CliError(_exit_code(response.status_code, document["code"]), _explain(document))


def _exit_code(status: int, code: str) -> ExitCode:
    if code in _EXIT_BY_CODE:
        return _EXIT_BY_CODE[code]
    if status == 404:
        return ExitCode.NOT_FOUND
    return ExitCode.USAGE if status < 500 else ExitCode.SERVICE


def _explain(document: Mapping[str, Any]) -> str:
    lines = [str(document.get("detail") or document.get("title"))]
    for error in document.get("errors", ()):
        where = error.get("pointer") or error.get("parameter") or "request"
        lines.append(f"  {where}: {error['detail']}")
    for finding in document.get("findings", ()):
        lines.append(f"  - {_finding(finding)}")
    if document.get("advice"):
        lines.append(str(document["advice"]))
    return "\n".join(lines)


def _finding(finding: Any) -> str:
    if not isinstance(finding, dict):
        return str(finding)
    where = [str(finding[name]) for name in ("shape", "world_size") if finding.get(name)]
    place = f" (shape {' on W='.join(where)})" if where else ""
    return f"{finding.get('check', 'problem')}{place}: {finding.get('message')}"
