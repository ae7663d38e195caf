"""Which addresses the service may listen on. It has no login, so loopback is the rule."""

from __future__ import annotations

import ipaddress

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class RemoteBindError(ValueError):
    """The address is reachable from other machines and nobody said that this is meant."""


def check_bind(host: str, *, allow_remote: bool) -> None:
    """Raise RemoteBindError unless `host` is loopback or `allow_remote` is given."""
    if allow_remote or is_loopback(host):
        return
    raise RemoteBindError(
        f"{host} can be reached from other machines, and the service has no login: anyone there "
        f"could run kernels here and spend the budget. Bind 127.0.0.1 and use an SSH tunnel or a "
        f"proxy that checks who asks, or give --allow-remote if this network is trusted"
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`. A name other than `localhost` counts as remote."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def page_url(host: str, port: int) -> str:
    """The address to open in a browser on this machine."""
    if host in {"0.0.0.0", ""}:  # noqa: S104 - compared with, not bound
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
