"""An OpenAI-compatible chat server on loopback that plays a script, for tests over real HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

POLL_S = 0.02  # how soon the server notices that it shall stop


@dataclass(frozen=True)
class Answer:
    """One scripted HTTP answer; `body` is sent as it is."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def says(
    text: str, *, tokens_in: int = 1000, tokens_out: int = 500, finish_reason: str = "stop"
) -> Answer:
    """Answer 200 with a chat completion of this text."""
    body = {
        "id": "chatcmpl-stub",
        "object": "chat.completion",
        "created": 1,
        "model": "stub",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": finish_reason,
            }
        ],
        "usage": {
            "prompt_tokens": tokens_in,
            "completion_tokens": tokens_out,
            "total_tokens": tokens_in + tokens_out,
        },
    }
    return Answer(body=json.dumps(body).encode())


def refuses(status: int, message: str, code: str | None = None, **headers: str) -> Answer:
    """Answer with an OpenAI error object; `retry_after="1"` becomes the header `retry-after`."""
    body = json.dumps({"error": {"message": message, "type": "stub", "code": code}}).encode()
    return Answer(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


class LlmStub:
    """Serves the answers in order, then 500s; `requests` are the bodies it was sent."""

    def __init__(self, answers: Iterable[Answer] = ()) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["content-length"])
                stub.requests.append(json.loads(self.rfile.read(size)))
                stub.keys.append(self.headers["authorization"])
                exhausted = refuses(500, "the script has ended")
                answer = stub.answers.pop(0) if stub.answers else exhausted
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, format: str, *args: Any) -> None:
                """Keep test output clean."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_S,), daemon=True
        )

    @property
    def api_base(self) -> str:
        """The base URL to give to a client."""
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=10)
