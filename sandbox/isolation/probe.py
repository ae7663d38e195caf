"""A hostile mini-suite against an executor, run at start-up: the judge fails closed.

It takes about half a second. Behaviours that need more than one process or more than one look are
in the test suite; this one shows that the machine at hand enforces what the back end promises.
"""

import contextlib
import json
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pk_runtime.execution import Command, Completed, ExecutionError, Executor, Limits
from sandbox.isolation.interpreter import interpreter_paths

MUST_BE_ALLOWED = frozenset({
    "loopback inside", "socket pair", "the work folder", "own environment", "write to /tmp",
    "write to /dev/shm", "disk within the limit", "a harmless system call", "threads",
    "a subprocess", "processes within the limit", "limits of its own", "memory of its own",
})  # fmt: skip
_MIB = 1 << 20
_LIMITS = Limits(20.0, 256 * _MIB, processes=24, output_bytes=_MIB, file_bytes=16 * _MIB)
_HOSTILE = Path(__file__).with_name("hostile.py")
_SURVIVOR = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("born", flush=True)
        time.sleep(20)
time.sleep(20)
"""
_HOG = "import sys; block = b'x' * int(sys.argv[1])"


@dataclass(frozen=True)
class Finding:
    """One behaviour: what was tried, and whether the sandbox did what it must."""

    name: str
    ok: bool
    detail: str


def probe(executor: Executor) -> list[Finding]:
    """Tries to break out of `executor`. All findings are ok only if everything holds."""
    try:
        with tempfile.TemporaryDirectory(prefix="pkforge-probe-") as folder:
            workdir = Path(folder) / "work"
            workdir.mkdir()
            return [
                *_attempts(executor, Path(folder), workdir),
                *_limits(executor, workdir),
            ]
    except ExecutionError as error:
        return [Finding("a sandbox starts", ok=False, detail=str(error))]


def _attempts(executor: Executor, folder: Path, workdir: Path) -> Iterator[Finding]:
    secret = folder / "secret"
    secret.write_text(secrets.token_hex())
    secret.chmod(0o644)
    folder.chmod(0o755)
    name = f"pkforge-{secrets.token_hex(8)}"
    with socket.create_server(("127.0.0.1", 0)) as server, _abstract(name) as abstract:
        facts = {
            "port": server.getsockname()[1],
            "abstract": name,
            "secret": str(secret),
            "variable": "PKFORGE_PROBE",
            "file_bytes": _LIMITS.file_bytes,
            "processes": _LIMITS.processes,
        }
        done = _python(executor, workdir, _HOSTILE.read_text(), json.dumps(facts))
        for listener in (server, abstract):  # the control: from here, both can be reached
            with socket.socket(listener.family) as client:
                client.connect(listener.getsockname())
    outcome = _decode(done)
    if outcome is None:
        detail = done.stderr.decode(errors="replace")[-400:]
        yield Finding("Python runs inside", ok=False, detail=detail)
        return
    for attempt, happened in outcome.items():
        expected = "allowed" if attempt in MUST_BE_ALLOWED else "denied"
        yield Finding(attempt, happened == expected, f"{happened}, must be {expected}")


def _limits(executor: Executor, workdir: Path) -> Iterator[Finding]:
    memory = _LIMITS.memory_bytes
    fits = _python(executor, workdir, _HOG, str(memory // 4))
    yield Finding("memory within the limit", fits.ok, _say(fits))
    hog = _python(executor, workdir, _HOG, str(memory * 2))
    yield Finding("more memory than allowed", not hog.ok, _say(hog))
    flood = _python(executor, workdir, "while True: print('y' * 65536)")
    yield Finding("output without end", flood.exceeded == "output", _say(flood))
    late = _python(executor, workdir, _SURVIVOR, wall_s=0.5)
    born = late.stdout == b"born\n"
    yield Finding("a detached child is killed in time", born and late.exceeded == "wall",
                  _say(late))  # fmt: skip


def _python(
    executor: Executor, workdir: Path, source: str, *arguments: str, wall_s: float = _LIMITS.wall_s
) -> Completed:
    return executor.run(
        Command(
            argv=(sys.executable, "-I", "-S", "-c", source, *arguments),
            workdir=workdir,
            read_only=interpreter_paths(),
            env={"PKFORGE_PROBE": "set"},
            limits=Limits(wall_s, _LIMITS.memory_bytes, _LIMITS.processes,
                          _LIMITS.output_bytes, _LIMITS.file_bytes),
        )
    )  # fmt: skip


def _decode(done: Completed) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError):
        outcome = json.loads(done.stdout)
        if isinstance(outcome, dict):
            return outcome
    return None


def _say(done: Completed) -> str:
    return f"exit code {done.exit_code}, signal {done.signal}, exceeded {done.exceeded}"


@contextlib.contextmanager
def _abstract(name: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind("\0" + name)
        listener.listen()
        yield listener
