"""Jobs as people read them, and what their outcome means for an exit code."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from api.cli.console import safe, stdout
from api.cli.exits import CliError, ExitCode
from api.cli.formats import percent, timed, times
from api.cli.progress import Row, attempts_table

if TYPE_CHECKING:
    from api.cli.client import ServiceClient

_POLL_S = 0.5
_SHOWN = (
    *("number", "parent", "phase", "knobs", "hypothesis", "status"),
    *("candidate_us", "kind", "speedup", "bottleneck"),
)


def outcome_exit(job: Mapping[str, Any]) -> ExitCode:
    """The exit code of a job that has ended: what was asked for, or why not."""
    reason = job["stop_reason"] or ""
    if job["status"] == "failed" and reason == "infra":
        return ExitCode.SERVICE
    goal = job["target_speedup"]
    reached = job["status"] == "succeeded" and (goal is None or reason == "target_reached")
    if reached:
        return ExitCode.OK
    return ExitCode.BUDGET if reason.startswith("budget_") else ExitCode.NOT_CORRECT


def explain_outcome(job: Mapping[str, Any]) -> str:
    """How a job ended, in a sentence or two."""
    reason = f" ({job['stop_reason']})" if job["stop_reason"] else ""
    lines = [f"{job['id']} {job['status']}{reason}"]
    if job["detail"]:
        lines.append(safe(job["detail"]))
    best = job["best"]
    if best is not None:
        lines.append(_best_line(best))
        if best["void"]:
            lines.append(
                f"void: {safe('; '.join(best['void']))}. Judge it anew with "
                f"`pkforge job verify {job['id']}`"
            )
    if job["status"] == "succeeded":
        lines.append(f"fetch the kernel with `pkforge job download {job['id']}`")
    return "\n".join(lines)


def _best_line(best: Mapping[str, Any]) -> str:
    share = None
    if best["roofline_us"] and best["candidate_us"]:
        share = best["roofline_us"] / best["candidate_us"]
    return (
        f"best: attempt {best['number']}, {timed(best['candidate_us'], best['kind'])} against "
        f"{timed(best['baseline_us'], best['kind'])} of the baseline: {times(best['speedup'])}, "
        f"{percent(share)} of the roofline"
    )


def print_job(job: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]]) -> None:
    """Print a job and the table of its attempts on stdout."""
    budget, spent = job["budget"], job["spent"]
    out = stdout()
    out.print(safe(explain_outcome(job)), markup=False)
    out.print(
        f"{job['problem']} on {job['target']}, policy {safe(job['policy'])}, "
        f"shape {safe(job['shape'] or 'all bench shapes')}",
        markup=False,
    )
    out.print(
        f"attempts {spent['attempts']} of {budget['attempts']}, "
        f"{spent['usd']:.2f} of {budget['usd']:.2f} USD, "
        f"{spent['wall_s']:.0f} of {budget['wall_s']:.0f} s",
        markup=False,
    )
    rows = [Row(**{name: attempt[name] for name in _SHOWN}) for attempt in attempts]
    if rows:
        out.print(attempts_table(rows, None if job["best"] is None else job["best"]["number"]))


def wait_for_verdict(
    service: ServiceClient, asked: Mapping[str, Any], timeout: float | None
) -> Mapping[str, Any]:
    """The evaluation once it has ended; `CliError` when `timeout` seconds pass first."""
    deadline = None if timeout is None else time.monotonic() + timeout
    evaluation = asked
    while evaluation["verdict"] is None and evaluation["finished_at"] is None:
        if deadline is not None and time.monotonic() > deadline:
            raise CliError(
                ExitCode.TIMEOUT, f"{asked['id']} is {evaluation['status']} still and goes on"
            )
        time.sleep(_POLL_S)
        evaluation = service.get(asked["links"]["self"])
    return evaluation


def check_digest(data: bytes, header: str) -> str:
    """The SHA-256 of `data` in hex; `CliError` when the service announced another one."""
    digest = hashlib.sha256(data).digest()
    announced = re.search(r"sha-256=:([A-Za-z0-9+/=]+):", header)
    if announced is None or announced[1] != base64.b64encode(digest).decode("ascii"):
        raise CliError(
            ExitCode.SERVICE, "the download is damaged: its checksum is wrong; try again"
        )
    return digest.hex()


def filename_of(disposition: str, default: str) -> str:
    """The plain file name a response suggests; never a path."""
    found = re.search(r'filename="([A-Za-z0-9._-]+)"', disposition)
    name = found[1] if found else default
    return default if name.startswith(".") else name
