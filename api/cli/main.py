"""The `pkforge` command: every sub-command, and the one place where an error becomes an exit."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated, NoReturn

import typer

from api.cli import demo, doctor, evaluate, explain, jobs, problems, service, targets
from api.cli.console import note, safe
from api.cli.exits import CliError, ExitCode

app = typer.Typer(
    name="pkforge",
    help="Turn a slow multi-GPU PyTorch + NCCL operator into a proved, faster kernel.",
    epilog="Exit codes: 0 ok, 1 not correct or not reached, 2 usage, 3 not found, "
    "5 service or machine, 6 budget, 7 timeout, 130 interrupted. Details: docs/cli.md",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("serve")(service.serve)
app.command("worker")(service.worker)
app.command("eval")(evaluate.evaluate)
app.command("explain")(explain.explain)
app.command("doctor")(doctor.doctor)
app.command("demo")(demo.demo)
app.add_typer(jobs.app, name="job")
app.add_typer(problems.app, name="problem")
app.add_typer(targets.app, name="target")


def _print_version(asked: bool) -> None:
    if asked:
        from api.version import VERSION

        print(f"pkforge {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and stop.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Options before any command."""


def main() -> NoReturn:
    """Run the command line and exit with a documented code."""
    try:
        app(prog_name="pkforge")
    except CliError as error:
        note(f"pkforge: {safe(error)}")
        sys.exit(error.code)
    except BrokenPipeError:
        # The reader of stdout went away (`| head`): there is nobody left to tell.
        sys.stderr.close()
        sys.exit(ExitCode.OK)
    except Exception:  # noqa: BLE001 - exit status 1 would say "judged and not correct"
        traceback.print_exc()
        note("pkforge: this is a fault of pkforge itself; please report it with the lines above")
        sys.exit(ExitCode.SERVICE)
    sys.exit(ExitCode.OK)


if __name__ == "__main__":
    main()
