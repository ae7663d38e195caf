"""The service in tests: over ASGI in this process, or as a real process with a real port."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI

from api.app import create_app
from store import Settings, Store

BASE = "http://127.0.0.1"
START_S = 60.0
STOP_S = 40.0


class Api:
    """The application with its lifespan run, asked over ASGI by synchronous tests."""

    def __init__(self, app: FastAPI, portal: BlockingPortal) -> None:
        self.app = app
        self._portal = portal
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url=BASE)

    @property
    def store(self) -> Store:
        """The store behind the application."""
        store: Store = self.app.state.context.store
        return store

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send one request and read the whole answer."""

        async def send() -> httpx.Response:
            return await self._client.request(method, path, **options)

        return self._portal.call(send)

    def get(self, path: str, **options: Any) -> httpx.Response:
        """GET."""
        return self.request("GET", path, **options)

    def post(self, path: str, json: Any = None, **options: Any) -> httpx.Response:
        """POST a JSON body, or none."""
        return self.request("POST", path, json=json, **options)


@contextlib.contextmanager
def asgi(settings: Settings, **options: Any) -> Iterator[Api]:
    """The application without workers of its own, so that jobs stay as the test leaves them."""
    app = create_app(settings, work=False, **options)
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(app.router.lifespan_context(app)),
    ):
        yield Api(app, portal)


def problem_of(response: httpx.Response, code: str, status: int) -> dict[str, Any]:
    """The problem document of an error answer; fails unless it is one of `code`."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    document: dict[str, Any] = response.json()
    assert (document["code"], document["status"], response.status_code) == (code, status, status), (
        document
    )
    assert document["type"] == f"/v1/errors/{code}"
    assert document["instance"] == response.headers["x-request-id"]
    for member in ("title", "detail", "advice"):
        assert document[member], member
    return document


@dataclass
class Process:
    """A running `pkforge serve`."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def kill(self) -> None:
        """SIGKILL, as a crash or the kernel's out-of-memory killer would."""
        self.process.kill()
        self.process.wait(STOP_S)


@contextlib.contextmanager
def serving(home: Path, *arguments: str, **variables: str) -> Iterator[Process]:
    """`pkforge serve` on a free port with `PKFORGE_*` variables; it has ended afterwards."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PKFORGE_")},
        "PKFORGE_HOME": str(home),
        **{f"PKFORGE_{name.upper()}": value for name, value in variables.items()},
    }
    home.mkdir(parents=True, exist_ok=True)
    log = home / "serve.log"
    with (
        log.open("a") as output,
        subprocess.Popen(
            [sys.executable, "-m", "api.cli", "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            env=environment,
            cwd=Path(__file__).parents[2],
        ) as process,
    ):
        try:
            yield Process(_address(process, log), process, log)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def _address(process: subprocess.Popen[str], log: Path) -> str:
    """What `serve` prints once it answers."""
    assert process.stdout is not None
    deadline = time.monotonic() + START_S
    os.set_blocking(process.stdout.fileno(), False)
    while time.monotonic() < deadline and process.poll() is None:
        line = process.stdout.readline()
        if line:
            return line.strip()
        time.sleep(0.05)
    raise RuntimeError(f"the service did not start:\n{log.read_text()}")


def processes_of(home: Path) -> list[int]:
    """Processes that work in an installation, by what their environment says."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if f"PKFORGE_HOME={home}\0".encode() in environment:
            found.append(int(folder.name))
    return found


def await_no_processes(home: Path, *, but: tuple[int, ...] = (), within_s: float = 20.0) -> None:
    """Wait until nothing works in an installation any more; fails when something stays."""
    deadline = time.monotonic() + within_s
    while set(processes_of(home)) - set(but):
        assert time.monotonic() < deadline, f"left running: {processes_of(home)}"
        time.sleep(0.1)
