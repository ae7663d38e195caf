"""`pkforge serve` and `pkforge worker`: the long-running processes."""

from __future__ import annotations

from typing import Annotated

import typer


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; default: PKFORGE_HOST, else loopback.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port; 0 takes a free one. Default: PKFORGE_PORT, else 8770.")
    ] = None,
    allow_remote: Annotated[
        bool,
        typer.Option(
            "--allow-remote",
            help="Listen on an address that other machines reach. There is no login.",
        ),
    ] = False,
    no_workers: Annotated[
        bool, typer.Option("--no-workers", help="Only answer requests; others run the jobs.")
    ] = False,
    no_isolation: Annotated[
        bool,
        typer.Option(
            "--no-isolation", help="Run candidates without a sandbox where none is available."
        ),
    ] = False,
) -> None:
    """Run the service: the API, the page, and workers for the jobs, until Ctrl-C."""
    from api.binding import RemoteBindError, check_bind
    from api.cli.console import note
    from api.cli.exits import CliError, ExitCode
    from api.cli.options import settings

    given = {
        "host": host,
        "port": port,
        "allow_no_isolation": True if no_isolation else None,
    }
    chosen = settings(**{name: value for name, value in given.items() if value is not None})
    try:
        check_bind(chosen.host, allow_remote=allow_remote)
    except RemoteBindError as error:
        raise CliError(ExitCode.USAGE, str(error)) from None

    from api.server import PortTakenError, ServiceFailedError, run_service
    from workers.logs import configure_logs

    configure_logs()

    def announce(url: str) -> None:
        print(url, flush=True)
        note(f"pkforge serves {url}, home {chosen.home}; Ctrl-C stops it")

    try:
        run_service(chosen, announce=announce, allow_remote=allow_remote, work=not no_workers)
    except (PortTakenError, ServiceFailedError) as error:
        raise CliError(ExitCode.SERVICE, str(error)) from None


def worker(
    queue: Annotated[
        list[str] | None,
        typer.Option(help="Queue to serve, such as gpu.h200.x4; may be repeated. Default: cpu."),
    ] = None,
) -> None:
    """Run jobs for a service that has a broker (PKFORGE_BROKER_URL), until Ctrl-C."""
    from api.cli.exits import CliError, ExitCode
    from api.cli.options import settings

    chosen = settings()
    if chosen.embedded:
        raise CliError(
            ExitCode.USAGE,
            "no broker is set, so `pkforge serve` runs the jobs itself; set PKFORGE_BROKER_URL "
            "(and the same PKFORGE_DATABASE_URL and PKFORGE_ARTIFACTS) for a worker of its own",
        )
    from workers.celery_app import run_worker
    from workers.queues import CPU_QUEUE

    raise typer.Exit(run_worker(chosen, queue or (CPU_QUEUE,)))
