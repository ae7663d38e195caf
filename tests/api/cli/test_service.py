"""`pkforge serve` and `pkforge worker`: where they listen and what they refuse."""

from __future__ import annotations

import socket

import pytest

from api.binding import RemoteBindError, check_bind, page_url
from tests.api.cli.conftest import Run


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.1", "[::1]"])
def test_loopback_is_allowed(host: str) -> None:
    check_bind(host, allow_remote=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "gpu-box.lan", "", "127.1"])
def test_another_address_needs_the_flag(host: str) -> None:
    with pytest.raises(RemoteBindError):
        check_bind(host, allow_remote=False)
    check_bind(host, allow_remote=True)


def test_serve_refuses_another_address(run: Run) -> None:
    ran = run("serve", "--host", "0.0.0.0")
    assert (ran.code, ran.out) == (2, "")
    assert "--allow-remote" in ran.err


def test_a_taken_port_is_named(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = run("serve", "--port", str(port))
    assert (ran.code, ran.out) == (5, "")
    assert f"port {port}" in ran.err
    assert "--port" in ran.err


def test_a_worker_needs_a_broker(run: Run) -> None:
    ran = run("worker")
    assert (ran.code, ran.out) == (2, "")
    assert "PKFORGE_BROKER_URL" in ran.err


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::", "http://[::1]:1"),
        ("::1", "http://[::1]:1"),
    ],
)
def test_the_address_to_open_is_one_of_this_machine(host: str, url: str) -> None:
    assert page_url(host, 1) == url
