"""`pkforge explain`: what a stored verdict says, for a person."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_LARGEST_VERDICT_BYTES = 16 << 20


def explain(
    verdict: Annotated[
        str,
        typer.Argument(help="A verdict as `pkforge eval --json` prints it; - reads stdin."),
    ],
) -> None:
    """Explain a verdict: what was found, how fast it is, where the time goes and what to try.

    Exit: 0 explained, whatever it says, 2 not a verdict, 3 no such file.
    """
    import json
    import sys

    from api.cli.exits import CliError, ExitCode
    from api.cli.files import read_text
    from api.cli.verdict_view import print_verdict
    from sandbox.verdict import Verdict, VerdictError

    if verdict == "-":
        text = sys.stdin.read(_LARGEST_VERDICT_BYTES)
    else:
        text = read_text(Path(verdict), _LARGEST_VERDICT_BYTES)
    try:
        document = json.loads(text)
        found = Verdict.from_json(document if isinstance(document, dict) else {})
    except (ValueError, RecursionError, VerdictError) as error:
        raise CliError(
            ExitCode.USAGE,
            f"{verdict}: not a verdict: {error}. Give what `pkforge eval --json` prints.",
        ) from None
    print_verdict(found)
