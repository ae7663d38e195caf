"""Running the service under uvicorn: in the foreground, or in a thread of a program."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from api.app import create_app
from api.binding import page_url
from store.settings import Settings

_GRACE_S = 3
_START_S = 60.0
_POLL_S = 0.02


class PortTakenError(OSError):
    """The address cannot be listened on."""


class ServiceFailedError(RuntimeError):
    """The service ended before it was ready; its log says why."""


class _Server(uvicorn.Server):
    """Tells the application at once when it is to stop, so that open event streams end."""

    def __init__(self, config: uvicorn.Config, stopping: threading.Event) -> None:
        super().__init__(config)
        self.stopping = stopping
        self.on_started: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.on_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.stopping.set()
        super().handle_exit(sig, frame)

    def stop(self) -> None:
        """End the service from another thread."""
        self.stopping.set()
        self.should_exit = True


def run_service(
    settings: Settings,
    *,
    announce: Callable[[str], None],
    allow_remote: bool = False,
    work: bool = True,
) -> None:
    """Serve until SIGINT or SIGTERM; `announce` gets the address once it answers.

    Raises PortTakenError, and ServiceFailedError when it does not come up.
    """
    with _listening(settings) as listener:
        server = _server(settings, allow_remote=allow_remote, work=work, log_level="info")
        url = page_url(settings.host, listener.getsockname()[1])
        server.on_started = lambda: announce(url)
        server.run(sockets=[listener])
        if not server.started:
            raise ServiceFailedError("the service did not start; its log is above")


@contextmanager
def service_in_thread(settings: Settings, *, work: bool = True) -> Iterator[str]:
    """Serve in a thread of this process and give the address; the service has ended afterwards.

    Raises PortTakenError, and ServiceFailedError when it does not come up.
    """
    with _listening(settings) as listener:
        server = _server(settings, allow_remote=False, work=work, log_level="error")
        thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listener]}, name="pkforge-service"
        )
        thread.start()
        try:
            deadline = time.monotonic() + _START_S
            while not server.started:
                if not thread.is_alive() or time.monotonic() > deadline:
                    raise ServiceFailedError("the service did not start; its log is above")
                time.sleep(_POLL_S)
            yield page_url(settings.host, listener.getsockname()[1])
        finally:
            server.stop()
            thread.join(settings.drain_s + _START_S)


def _server(settings: Settings, *, allow_remote: bool, work: bool, log_level: str) -> _Server:
    app = create_app(settings, allow_remote=allow_remote, work=work)
    config = uvicorn.Config(
        app,
        log_level=log_level,
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=_GRACE_S,
    )
    return _Server(config, app.state.stopping)


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """A socket bound before anything else starts, so that a taken port is found out first."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host.strip("[]"), settings.port))
        except OSError as error:
            raise PortTakenError(
                f"cannot listen on {settings.host} port {settings.port}: {error.strerror}; "
                f"stop what uses it, or choose another with --port (0 takes a free one)"
            ) from None
        yield listener
