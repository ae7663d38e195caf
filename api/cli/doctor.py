"""`pkforge doctor`: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.options import Json


def doctor(
    no_isolation: Annotated[
        bool, typer.Option("--no-isolation", help="Accept a machine without a sandbox.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check compiler, sandbox, torch, database and disk; each failed line says the fix."""
    from dataclasses import asdict

    from rich.text import Text

    from api.checks import all_required_ok, examine
    from api.cli.console import print_json, safe, stdout
    from api.cli.exits import ExitCode
    from api.cli.options import settings

    checks = examine(settings(**({"allow_no_isolation": True} if no_isolation else {})))
    ready = all_required_ok(checks)
    if as_json:
        print_json({"ready": ready, "checks": [asdict(check) for check in checks]})
        raise typer.Exit(ExitCode.OK if ready else ExitCode.NOT_CORRECT)
    out = stdout()
    for check in checks:
        word, style = ("ok", "green") if check.ok else ("missing", "bold red")
        if not check.ok and not check.required:
            word, style = "optional", "yellow"
        line = Text(f"{word:<9}", style=style)
        line.append(f"{check.name:<10} {safe(check.detail)}", style="default")
        out.print(line)
        if check.fix is not None:
            out.print(Text(f"{'':<20} to fix: {safe(check.fix)}", style="default"))
    out.print("this machine can run pkforge" if ready else "something required is missing")
    raise typer.Exit(ExitCode.OK if ready else ExitCode.NOT_CORRECT)
