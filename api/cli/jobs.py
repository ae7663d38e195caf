"""`pkforge job`: submit an optimization run, follow it, fetch its kernel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.options import Json, Url

if TYPE_CHECKING:
    from api.cli.client import ServiceClient

app = typer.Typer(help="Optimization runs.", no_args_is_help=True)

JobId = Annotated[str, typer.Argument(help="Identifier of the job, job_...")]
Timeout = Annotated[
    float | None, typer.Option(help="Stop watching after so many seconds.", min=0.0)
]


@app.command("submit")
def submit(
    problem: Annotated[str, typer.Argument(help="Slug or number of the problem.")],
    target: Annotated[str, typer.Option(help="Where it must be fast, such as sim:h200x4.")],
    policy: Annotated[str, typer.Option(help="tuner, llm:MODEL or scripted.")] = "tuner",
    scripted: Annotated[
        Path | None, typer.Option(help="Folder of candidates for policy scripted.")
    ] = None,
    start_from: Annotated[
        Path | None, typer.Option(help="Kernel to start from: a source file or a bundle.")
    ] = None,
    shape: Annotated[str | None, typer.Option(help="Optimize for one bench shape.")] = None,
    attempts: Annotated[int, typer.Option(help="Budget: attempts while searching.", min=1)] = 40,
    usd: Annotated[float, typer.Option(help="Budget: US dollars for model calls.", min=0)] = 5.0,
    wall: Annotated[float, typer.Option(help="Budget: seconds of working time.", min=1)] = 3600.0,
    target_speedup: Annotated[
        float | None, typer.Option(help="Stop at this speedup over the baseline.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Make the run repeatable.", min=0)] = None,
    watch_it: Annotated[bool, typer.Option("--watch", help="Follow it to its end.")] = False,
    timeout: Timeout = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Submit a job. Prints its id; with --watch, follows it and exits as `job watch` does."""
    from api.cli.candidates import read_candidate, read_scripted
    from api.cli.console import note, print_json
    from api.cli.options import client

    body: dict[str, Any] = {
        "problem": problem,
        "target": target,
        "policy": "scripted" if scripted is not None and policy == "tuner" else policy,
        "shape": shape,
        "budget": {"attempts": attempts, "usd": usd, "wall_s": wall},
        "target_speedup": target_speedup,
        "seed": seed,
    }
    if scripted is not None:
        body["scripted"] = [item.to_json() for item in read_scripted(scripted)]
    if start_from is not None:
        body["start_from"] = read_candidate(start_from).candidate.to_json()
    with client(url) as service:
        job = service.post("/v1/jobs", body)
        if watch_it:
            note(f"submitted {job['id']}; page: {service.url}/#/jobs/{job['id']}")
            _watch(service, job["id"], timeout, as_json)
        elif as_json:
            print_json(job)
        else:
            print(job["id"])
            note(f"follow it with `pkforge job watch {job['id']}`")


@app.command("list")
def list_jobs(
    limit: Annotated[int, typer.Option(help="How many at most.", min=1)] = 20,
    status: Annotated[
        str | None, typer.Option(help="Only queued, running, succeeded, failed or cancelled ones.")
    ] = None,
    problem: Annotated[str | None, typer.Option(help="Only jobs on this problem.")] = None,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    from rich.table import Table
    from rich.text import Text

    from api.cli.console import print_json, safe, stdout
    from api.cli.formats import UNKNOWN, timed, times
    from api.cli.options import client

    with client(url) as service:
        items = list(service.pages("/v1/jobs", limit, status=status, problem=problem))
    if as_json:
        print_json(items)
        return
    table = Table("job", "status", "problem", "target", "policy", "time", "speedup", "created")
    table.box, table.pad_edge = None, False
    for item in items:
        best = item["best"] or {"candidate_us": None, "kind": None, "speedup": None}
        reason = f" ({item['stop_reason']})" if item["stop_reason"] else ""
        cells = (
            item["id"],
            item["status"] + reason,
            item["problem"],
            item["target"],
            item["policy"] or UNKNOWN,
            timed(best["candidate_us"], best["kind"]),
            times(best["speedup"]),
            item["created_at"][:19].replace("T", " "),
        )
        table.add_row(*(Text(safe(cell)) for cell in cells))
    stdout().print(table)


@app.command("show")
def show(job_id: JobId, url: Url = None, as_json: Json = False) -> None:
    """Show a job and its attempts."""
    from api.cli.console import print_json
    from api.cli.job_view import print_job
    from api.cli.options import client

    with client(url) as service:
        job = service.get(f"/v1/jobs/{_quoted(job_id)}")
        attempts = list(service.pages(job["links"]["attempts"], limit=10_000))
    if as_json:
        print_json(job | {"attempts": attempts})
        return
    print_job(job, attempts)


@app.command("watch")
def watch(job_id: JobId, timeout: Timeout = None, url: Url = None, as_json: Json = False) -> None:
    """Follow a job to its end; --json prints its events as JSON Lines. Ctrl-C detaches."""
    from api.cli.options import client

    with client(url) as service:
        service.get(f"/v1/jobs/{_quoted(job_id)}")
        _watch(service, job_id, timeout, as_json)


@app.command("cancel")
def cancel(job_id: JobId, url: Url = None, as_json: Json = False) -> None:
    """Cancel a job. What it has verified so far stays its result."""
    from api.cli.console import print_json
    from api.cli.options import client

    with client(url) as service:
        job = service.post(f"/v1/jobs/{_quoted(job_id)}/cancel")
    if as_json:
        print_json(job)
    elif job["finished_at"]:
        print(f"{job['id']} is cancelled")
    else:
        print(f"{job['id']} is asked to stop; it ends within seconds")


@app.command("download")
def download(
    job_id: JobId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to; default: this folder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Download the kernel a job ended with, as a bundle (zip)."""
    from api.cli.console import print_json
    from api.cli.files import write_new
    from api.cli.job_view import check_digest, filename_of
    from api.cli.options import client

    with client(url) as service:
        data, headers = service.download(f"/v1/jobs/{_quoted(job_id)}/kernel")
    digest = check_digest(data, headers.get("repr-digest", ""))
    name = filename_of(headers.get("content-disposition", ""), f"{job_id}.zip")
    path = output or Path(name)
    if path.is_dir():
        path = path / name
    write_new(path, data, force=force)
    if as_json:
        print_json({"path": str(path), "bytes": len(data), "sha256": digest})
    else:
        print(path)


@app.command("verify")
def verify(job_id: JobId, timeout: Timeout = None, url: Url = None, as_json: Json = False) -> None:
    """Judge the kernel a job ended with anew, as when its verdict is void."""
    from api.cli.console import print_json
    from api.cli.exits import CliError, ExitCode
    from api.cli.job_view import wait_for_verdict
    from api.cli.options import client
    from api.cli.verdict_view import print_verdict
    from sandbox.verdict import Verdict

    with client(url) as service:
        asked = service.post(f"/v1/jobs/{_quoted(job_id)}/kernel/verify")
        evaluation = wait_for_verdict(service, asked, timeout)
    verdict = evaluation["verdict"]
    if verdict is None:
        raise CliError(ExitCode.SERVICE, f"there is no verdict: {evaluation['detail']}")
    if as_json:
        print_json(evaluation)
    else:
        print_verdict(Verdict.from_json(verdict))
    raise typer.Exit(ExitCode.OK if verdict["status"] == "correct" else ExitCode.NOT_CORRECT)


def _watch(service: ServiceClient, job_id: str, timeout: float | None, as_json: bool) -> None:
    """Follow the job and end the command with the exit code that its outcome has."""
    import time

    from api.cli.console import note, print_json_line
    from api.cli.exits import ExitCode
    from api.cli.job_view import explain_outcome, outcome_exit
    from api.cli.progress import JobProgress, shown

    deadline = None if timeout is None else time.monotonic() + timeout
    progress = JobProgress(job_id)
    try:
        if as_json:
            for event in service.events(job_id, deadline=deadline):
                print_json_line(event.to_json())
        else:
            with shown(progress) as feed:
                for event in service.events(job_id, deadline=deadline):
                    feed(event)
    except KeyboardInterrupt:
        note(f"\ndetached: {job_id} goes on; stop it with `pkforge job cancel {job_id}`")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    job = service.get(f"/v1/jobs/{_quoted(job_id)}")
    if not as_json:
        print(explain_outcome(job))
    raise typer.Exit(outcome_exit(job))


def _quoted(identifier: str) -> str:
    from urllib.parse import quote

    return quote(identifier, safe="")
