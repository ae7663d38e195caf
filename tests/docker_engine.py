"""A real Docker engine for the tests: in a folder of its own, without systemd, gone afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

START_S = 90.0
STOP_S = 30.0
_POLL_S = 0.1
# No network: the containers of the tests have none, and the host's firewall is left alone.
_OPTIONS = ("--iptables=false", "--ip6tables=false", "--bridge=none", "--log-level", "error")


class NoEngine(RuntimeError):  # noqa: N818 - a state of the machine
    """No engine can be started here; the message says why."""


@contextlib.contextmanager
def docker_engine() -> Iterator[str]:
    """Starts an engine and gives its address; NoEngine, with the reason, where that fails."""
    program = shutil.which("dockerd", path="/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin")
    if program is None:
        raise NoEngine("dockerd is missing: apt-get install docker.io")
    if os.geteuid() != 0:
        raise NoEngine("only root can start a Docker engine")
    folder = Path(tempfile.mkdtemp(prefix="pkforge-docker-"))
    host = f"unix://{folder}/docker.sock"
    command = [
        *("setpriv", "--pdeathsig", "TERM", program, *_OPTIONS, "--host", host),
        *("--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")),
        *("--pidfile", str(folder / "pid"), "--storage-driver", _storage(folder)),
    ]
    log = folder / "log"
    try:
        with (
            log.open("wb") as output,
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            ) as process,
        ):  # fmt: skip
            try:
                _await_ready(host, process, log)
                yield host
            finally:
                _stop(process)
    finally:
        _remove(folder)


def call(host: str, *arguments: str, timeout_s: float = 60.0) -> str:
    """Standard output of one docker command against the engine at `host`."""
    return subprocess.run(
        ["docker", "--host", host, *arguments],
        check=True, capture_output=True, text=True, timeout=timeout_s,
    ).stdout.strip()  # fmt: skip


def _storage(folder: Path) -> str:
    """overlay2 wherever the folder is not itself an overlay, as it is in a container."""
    kind = subprocess.run(
        ["stat", "--file-system", "--format=%T", folder], check=True, capture_output=True, text=True
    ).stdout.strip()
    return "vfs" if "overlay" in kind else "overlay2"


def _await_ready(host: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(subprocess.SubprocessError):
            call(host, "version", timeout_s=10)
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise NoEngine(f"a Docker engine did not start:\n{log.read_text()[-2000:]}")
        time.sleep(_POLL_S)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _remove(folder: Path) -> None:
    """Deletes the engine's folder; what is still mounted in it is let go of first."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for place in sorted((m for m in mounts if m.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)
