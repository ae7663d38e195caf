"""Options that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from api.cli.client import ServiceClient
    from store.settings import Settings

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="Address of the service; default: PKFORGE_URL, else the local one.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout and nothing else there.")]


def settings(**given: Any) -> Settings:
    """The settings from the environment, `given` winning; a bad one is a usage error."""
    from pydantic import ValidationError

    from api.cli.exits import CliError, ExitCode
    from store.settings import ENV_PREFIX, Settings

    try:
        return Settings(**given)
    except ValidationError as error:
        wrong = [
            f"{ENV_PREFIX}{'_'.join(map(str, entry['loc'])).upper()}: {entry['msg']}"
            for entry in error.errors()
        ]
        raise CliError(ExitCode.USAGE, "a setting is wrong: " + "; ".join(wrong)) from None


def client(url: str | None) -> ServiceClient:
    """A client of the service at `url`, or of the one the settings name."""
    from api.cli.client import ServiceClient

    return ServiceClient(url or settings().service_url)
