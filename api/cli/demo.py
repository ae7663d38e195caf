"""`pkforge demo`: the whole of pkforge in a few minutes, with no GPU and no key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from api.cli.client import ServiceClient
    from store.settings import Settings

PROBLEM = "gemm_reducescatter"
TARGET = "sim:h200x4"
SHAPE = "m8192n8192k8192"
HOME = Path(".pkforge/demo")

_MARK = ".pkforge-demo"


def demo(
    policy: Annotated[
        str, typer.Option(help="tuner, or llm:MODEL for any model litellm knows.")
    ] = "tuner",
    attempts: Annotated[int, typer.Option(help="Attempts while searching.", min=2)] = 14,
    usd: Annotated[float, typer.Option(help="US dollars for model calls.", min=0)] = 2.0,
    keep: Annotated[
        bool, typer.Option("--keep", help="Go on serving the page until Ctrl-C.")
    ] = False,
) -> None:
    """Optimize GEMM + reduce-scatter on simulated H200s, watch it, keep the kernel."""
    import signal
    import time

    from api.cli.console import note
    from api.cli.exits import ExitCode

    started = time.monotonic()
    # SIGTERM ends the demo as Ctrl-C does, so that the service and its workers end with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _run(policy, attempts, usd, keep, started)
    except KeyboardInterrupt:
        note("\nstopped; everything it had started has ended")
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _run(policy: str, attempts: int, usd: float, keep: bool, started: float) -> None:
    import time

    from api.cli.client import ServiceClient
    from api.cli.console import note
    from api.cli.exits import CliError, ExitCode

    settings = _fresh_settings()
    _require_machine(settings)
    from api.server import PortTakenError, ServiceFailedError, service_in_thread

    print(f"pkforge demo: {PROBLEM} on {TARGET}, shape {SHAPE}, policy {policy}")
    print("Every time below is simulated on a hardware sheet of 4 H200s; no GPU is used.\n")
    log = settings.home / "service.log"
    try:
        with (
            _logs_in(log),
            service_in_thread(settings) as url,
            ServiceClient(url) as service,
        ):
            job = _optimize(service, policy, attempts, usd)
            _report(service, job, settings.home)
            print(f"total time    {time.monotonic() - started:.0f} s", flush=True)
            if keep:
                note(f"serving {url}/#/jobs/{job['id']} until Ctrl-C ...")
                _wait_for_ever()
    except (PortTakenError, ServiceFailedError) as error:
        raise CliError(ExitCode.SERVICE, f"{error} ({log})") from None
    print(f"serve again   PKFORGE_HOME={settings.home} pkforge serve")


@contextmanager
def _logs_in(path: Path) -> Iterator[None]:
    """Send the service's and its workers' logs to a file; `sys.stderr` stays the terminal."""
    import os
    import sys

    from workers.logs import configure_logs

    terminal = os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)
    # From here on descriptor 2, which the workers inherit, is the file.
    configure_logs()
    before, sys.stderr = sys.stderr, os.fdopen(terminal, "w", buffering=1)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        sys.stderr.close()
        sys.stderr = before


def _fresh_settings() -> Settings:
    """Settings of an installation of its own, emptied first."""
    import shutil

    from api.cli.exits import CliError, ExitCode
    from api.cli.options import settings

    home = HOME.absolute()
    if home.exists():
        if not (home / _MARK).exists() and any(home.iterdir()):
            raise CliError(
                ExitCode.USAGE, f"{home} is not a demo's folder; move it away and try again"
            )
        shutil.rmtree(home)
    home.mkdir(parents=True)
    (home / _MARK).touch()
    return settings(
        home=home,
        database_url=f"sqlite:///{home / 'pkforge.db'}",
        artifacts=home / "artifacts",
        build_cache=home / "build",
        broker_url=None,
        host="127.0.0.1",
        port=0,
    )


def _require_machine(settings: Settings) -> None:
    from api.checks import all_required_ok, examine
    from api.cli.exits import CliError, ExitCode

    checks = examine(settings)
    if all_required_ok(checks):
        return
    missing = [
        f"{check.name}: {check.detail}\n  to fix: {check.fix}"
        for check in checks
        if check.required and not check.ok
    ]
    raise CliError(ExitCode.SERVICE, "this machine lacks something:\n" + "\n".join(missing))


def _optimize(service: ServiceClient, policy: str, attempts: int, usd: float) -> Any:
    from api.cli.progress import JobProgress, shown

    body = {
        "problem": PROBLEM,
        "target": TARGET,
        "policy": policy,
        "shape": SHAPE,
        "budget": {"attempts": attempts, "usd": usd, "wall_s": 1200.0},
        "seed": 1,
    }
    job = service.post("/v1/jobs", body)
    print(f"watch it live at {service.url}/#/jobs/{job['id']}\n", flush=True)
    progress = JobProgress(job["id"])
    with shown(progress) as feed:
        for event in service.events(job["id"]):
            feed(event)
    return service.get(f"/v1/jobs/{job['id']}")


def _report(service: ServiceClient, job: Any, home: Path) -> None:
    from api.cli.comparison import explain_gain
    from api.cli.console import safe
    from api.cli.exits import CliError
    from api.cli.formats import knobs
    from api.cli.job_view import check_digest, explain_outcome, outcome_exit

    if job["status"] != "succeeded" or job["best"] is None:
        raise CliError(outcome_exit(job), f"the demo has no kernel to show\n{explain_outcome(job)}")
    attempts = job["links"]["attempts"]
    best = service.get(f"{attempts}/{job['best']['number']}")
    first = _first_correct(service, attempts)
    data, headers = service.download(job["links"]["kernel"])
    digest = check_digest(data, headers.get("repr-digest", ""))
    path = home / f"{PROBLEM}.zip"
    path.write_bytes(data)

    print(f"\nbest kernel   attempt {best['number']}: {safe(knobs(best['verdict']['knobs']))}")
    print(f"proof         {safe(best['summary'])}")
    print(f"why it is better than attempt {first['number']}, the kernel it started from:")
    for line in explain_gain(first, best):
        print(f"  {safe(line)}")
    print(f"\nbundle        {path} (sha256 {digest[:16]}...)")
    print(f"check it      pkforge eval {path}")
    print(f"page          {service.url}/#/jobs/{job['id']} (while it is served: --keep)")


def _first_correct(service: ServiceClient, attempts: str) -> Any:
    """The first attempt that has a time: what the search started from."""
    for attempt in service.pages(attempts, limit=10_000):
        if attempt["status"] == "correct":
            return service.get(f"{attempts}/{attempt['number']}")
    raise AssertionError("a job that succeeded has a correct attempt")


def _wait_for_ever() -> None:
    import threading

    threading.Event().wait()
