"""What a request passes before a route sees it: an id, host, origin and size guards, headers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import ERROR_TYPES
from api.problem_details import problem_response

log = structlog.get_logger(__name__)

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FAILED = "Something in the service went wrong; its log has the reason under this request's id."
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_LINGER_S = 1.0
LINGER_BYTES = 1 << 20


class _Incoming:
    """The request's body as it arrives; knows whether all of it has been taken."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.ended = False

    async def receive(self) -> Message:
        """The next message."""
        message = await self._receive()
        self.ended = self.ended or not message.get("more_body", False)
        return message

    async def linger(self) -> None:
        """Take a little more of a body that nobody wants.

        A connection closed with unread data is reset, and a reset that follows an answer at once
        can cost the client that answer.
        """
        taken = 0
        try:
            async with asyncio.timeout(_LINGER_S):
                while not self.ended and taken < LINGER_BYTES:
                    taken += len((await self.receive()).get("body", b""))
        except TimeoutError:
            return


class Guard:
    """Gives each request an id and refuses the ones no route should see.

    A service on loopback has no login, so two browser attacks matter: a page of another origin
    posting to it, and a foreign name resolved to 127.0.0.1. `allowed_hosts` None means any host
    (a deliberate non-loopback bind).
    """

    def __init__(
        self, app: ASGIApp, *, max_body_bytes: int, allowed_hosts: Collection[str] | None
    ) -> None:
        self.app = app
        self.max_body_bytes = max_body_bytes
        self.allowed_hosts = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        identity = f"req_{secrets.token_hex(8)}"
        scope.setdefault("state", {})["request_id"] = identity
        request_headers = Headers(scope=scope)
        incoming = _Incoming(receive)
        started = refused = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started, refused
            if message["type"] == "http.response.start":
                started, refused = True, message["status"] >= 400
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = identity
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
                headers["Referrer-Policy"] = "no-referrer"
                if message["status"] >= 400 and "transfer-encoding" in request_headers:
                    # Otherwise the server reads the rest of the body, to reuse the connection.
                    headers["Connection"] = "close"
            elif refused and not incoming.ended and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await incoming.linger()
                message = {"type": message["type"], "body": b""}
            await send(message)

        refusal = self._refusal(request_headers, scope["method"])
        if refusal is not None:
            await self._answer(*refusal, identity)(scope, incoming.receive, send_with_headers)
            return
        try:
            await self.app(scope, incoming.receive, send_with_headers)
        except Exception:
            # The answer first: a log that cannot be written must not cost it.
            if not started:
                answer = self._answer("internal_error", _FAILED, identity)
                await answer(scope, incoming.receive, send_with_headers)
            log.exception("request failed", request_id=identity, path=scope["path"])

    def _answer(self, code: str, detail: str, identity: str) -> Response:
        extensions = {"limit_bytes": self.max_body_bytes} if code == "body_too_large" else {}
        return problem_response(
            ERROR_TYPES[code],
            detail,
            instance=identity,
            headers={"Connection": "close"},
            extensions=extensions,
        )

    def _refusal(self, headers: Headers, method: str) -> tuple[str, str] | None:
        host = headers.get("host", "")
        if self.allowed_hosts is not None and _hostname(host) not in self.allowed_hosts:
            return "host_not_allowed", f"Host {host!r} is not one of this service's names."
        origin = headers.get("origin")
        if origin is not None and method not in _SAFE_METHODS and urlsplit(origin).netloc != host:
            return "cross_origin", f"Origin {origin!r} may not send {method} to {host!r}."
        length = headers.get("content-length", "")
        if length.isdigit() and int(length[:20]) > self.max_body_bytes:
            return "body_too_large", f"The body is larger than {self.max_body_bytes} bytes."
        return None


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
