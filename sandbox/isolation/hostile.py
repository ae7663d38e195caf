"""What the start-up check tries from inside a sandbox, run as `python -I -S -c SOURCE FACTS`.

Standard library only. Prints one JSON object: for each attempt what happened, "denied" or how it
was allowed. Every attempt that must be denied stands beside one that must be allowed, so that a
sandbox in which nothing works at all does not pass for one that holds.
"""

import contextlib
import ctypes
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

_PTRACE, _UNSHARE, _IO_URING_SETUP = 101, 272, 425
_NEWUSER = 0x10000000
_ATTACH, _NO_SUCH_PID = 16, 0x3FFFFF
_EPERM = 1
_VSOCK = 40


def attempts(facts: dict[str, Any]) -> dict[str, Callable[[], object]]:
    """Each attempt raises when it is refused and returns anything when it succeeds."""
    return {
        "inherited descriptors": _descriptors,
        "network to the host": lambda: _connect(("127.0.0.1", facts["port"])),
        "network to outside": lambda: _connect(("1.1.1.1", 53)),
        "loopback inside": _loopback,
        "abstract socket of the host": lambda: _connect("\0" + facts["abstract"], socket.AF_UNIX),
        "socket pair": socket.socketpair,
        "vsock": lambda: socket.socket(_VSOCK, socket.SOCK_STREAM),
        "a file of the host": lambda: _read(facts["secret"]),
        "the work folder": lambda: _write("written"),
        "environment of others": _environments,
        "own environment": lambda: os.environ[facts["variable"]],
        "write to /": lambda: _write("/written"),
        "write to /usr": lambda: _write("/usr/written"),
        "write to /dev": lambda: _write("/dev/written"),
        "write to /tmp": lambda: _write("/tmp/written"),  # noqa: S108
        "write to /dev/shm": lambda: _write("/dev/shm/written"),  # noqa: S108
        "more disk than allowed": lambda: _fill(facts["file_bytes"] + (8 << 20)),
        "disk within the limit": lambda: _fill(facts["file_bytes"] // 4),
        "ptrace": lambda: _call(_PTRACE, _ATTACH, _NO_SUCH_PID, 0, 0),
        "a user namespace": lambda: _call(_UNSHARE, _NEWUSER),
        "io_uring": lambda: _call(_IO_URING_SETUP, 1, 0),
        "a harmless system call": lambda: _call(39),
        "threads": _threads,
        "a subprocess": lambda: subprocess.run(["/bin/true"], check=True),
        "privileges": _privileges,
        "more processes than allowed": lambda: _forks(facts["processes"] + 8),
        "processes within the limit": lambda: _forks(4),
        "sight of other processes": _others,
        "memory of the first process": lambda: open("/proc/1/mem", "rb").close(),
        "memory of its own": lambda: open("/proc/self/mem", "rb").close(),
        "limits of the first process": lambda: resource.prlimit(1, resource.RLIMIT_CORE),
        "limits of its own": lambda: resource.prlimit(0, resource.RLIMIT_CORE),
        "settings of the kernel": lambda: open("/proc/sys/kernel/hostname", "a").close(),
    }


def _connect(address: Any, family: int = socket.AF_INET) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(1)
        client.connect(address)


def _loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        _connect(server.getsockname())


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(1)


def _write(path: str) -> None:
    with open(path, "x") as file:
        file.write("x")
    os.unlink(path)


def _environments() -> None:
    """Refused means: no other process shows a byte of the environment it was started with."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) not in (os.getpid(), os.getppid()) or int(pid) == 1:
            with contextlib.suppress(OSError):
                if _read(f"/proc/{pid}/environ"):
                    return
    raise PermissionError


def _fill(size: int) -> None:
    block = bytes(1 << 20)
    paths = []
    try:
        for _ in range(2):  # two files: a limit on each alone is not enough
            descriptor, path = tempfile.mkstemp(dir=".")
            paths.append(path)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                for _ in range(size // 2 // len(block)):
                    if file.write(block) != len(block):
                        raise OSError("disk full")
    finally:
        for path in paths:
            os.unlink(path)


def _call(number: int, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *arguments) < 0 and ctypes.get_errno() == _EPERM:
        raise PermissionError


def _threads() -> None:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def _privileges() -> None:
    with open("/proc/self/status") as file:
        status = dict(line.split(":\t", 1) for line in file)
    none = int(status["CapEff"], 16) == 0 and status["NoNewPrivs"].strip() == "1"
    if none and os.getuid() != 0:
        raise PermissionError


def _forks(wanted: int) -> None:
    children, (reader, writer) = [], os.pipe()
    try:
        for _ in range(wanted):
            child = os.fork()
            if child == 0:
                os.close(writer)
                os.read(reader, 1)
                os._exit(0)
            children.append(child)
    finally:
        os.close(writer)
        for child in children:
            os.waitpid(child, 0)
        os.close(reader)


def _others() -> None:
    if len(list(filter(str.isdigit, os.listdir("/proc")))) <= 4:
        raise PermissionError


def _descriptors() -> None:
    streams_and_listing = {"0", "1", "2", "3"}
    if set(os.listdir("/proc/self/fd")) <= streams_and_listing:
        raise PermissionError


def main() -> None:
    """Makes every attempt and prints what happened to each."""
    outcome = {}
    for name, attempt in attempts(json.loads(sys.argv[1])).items():
        try:
            attempt()
            outcome[name] = "allowed"
        except (OSError, subprocess.SubprocessError, KeyError, RuntimeError):
            outcome[name] = "denied"
    json.dump(outcome, sys.stdout)


if __name__ == "__main__":
    main()
