"""Who holds a lease: a process named so that its death can be told on its own host."""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path
from typing import Literal

Fate = Literal["alive", "dead", "unknown"]

_PROC = Path("/proc")
_START_FIELD = 19  # of what follows the command's name in /proc/PID/stat


@cache
def host() -> str:
    """The name under which this machine's processes hold leases."""
    return socket.gethostname().replace(":", "-")


def own_name() -> str:
    """`HOST:PID:START` of this process; START tells it from a later process with its number."""
    return name_of(os.getpid())


def name_of(pid: int) -> str:
    """`HOST:PID:START` of a running process. Raises OSError if there is none."""
    return f"{host()}:{pid}:{_start(pid)}"


def fate_of(owner: str) -> Fate:
    """Whether the process that an owner's name means still runs.

    `unknown` for another host, or where this process cannot see it (another container): then only
    the end of the lease tells.
    """
    try:
        owner_host, pid, start = owner.rsplit(":", 2)
        boot, namespace, _ = start.split(".")
    except ValueError:
        return "unknown"
    if owner_host != host() or not pid.isdigit():
        return "unknown"
    if boot != _boot():
        return "dead"
    if namespace != _namespace():
        return "unknown"
    try:
        return "alive" if _start(int(pid)) == start else "dead"
    except OSError:
        return "dead"


def _start(pid: int) -> str:
    """`BOOT.NAMESPACE.TICKS`: unique for every process that ever ran on this host."""
    stat = (_PROC / str(pid) / "stat").read_text()
    # The command's name is in parentheses and may hold anything, even parentheses.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        raise ProcessLookupError(f"process {pid} has ended")
    return f"{_boot()}.{_namespace()}.{fields[_START_FIELD]}"


@cache
def _boot() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]


@cache
def _namespace() -> str:
    # "pid:[4026531836]": process numbers mean something only within it
    return (_PROC / "self/ns/pid").readlink().name.strip("pid:[]")
