"""`pkforge target`: the machines a kernel can be made fast for."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from api.cli.options import Json, Url

app = typer.Typer(help="Machines a kernel can be made fast for.", no_args_is_help=True)


@app.command("list")
def list_targets(url: Url = None, as_json: Json = False) -> None:
    """List the targets."""
    from rich.table import Table

    from api.cli.console import print_json, stdout
    from api.cli.options import client

    with client(url) as service:
        items = service.get("/v1/targets")["items"]
    if as_json:
        print_json(items)
        return
    table = Table("target", "times are", "ranks", "machine", "here", box=None, pad_edge=False)
    for item in items:
        here = item["unavailable_here"]
        table.add_row(
            item["name"],
            item["kind"],
            str(item["world_size"]),
            item["title"],
            "yes" if here is None else f"no: {here}",
        )
    stdout().print(table)


@app.command("show")
def show_target(
    name: Annotated[str, typer.Argument(help="Such as sim:h200x4.")],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show a target with its hardware sheet."""
    from urllib.parse import quote

    from api.cli.console import print_json, stdout
    from api.cli.options import client

    with client(url) as service:
        target = service.get(f"/v1/targets/{quote(name, safe='')}")
    if as_json:
        print_json(target)
        return
    out = stdout()
    out.print(f"{target['name']}: {target['title']}", markup=False)
    out.print(f"times are {target['kind']}, {target['world_size']} ranks", markup=False)
    for name, value in target["sheet"].items():
        _print_sheet(name, value, indent=0)


def _print_sheet(name: str, value: Any, indent: int) -> None:
    from api.cli.console import safe, stdout

    pad = "  " * indent
    if isinstance(value, dict):
        stdout().print(f"{pad}{safe(name)}:", markup=False)
        for key, inner in value.items():
            _print_sheet(key, inner, indent + 1)
    elif isinstance(value, list) and value and isinstance(value[0], dict | list):
        stdout().print(f"{pad}{safe(name)}: {len(value)} rows (--json prints them)", markup=False)
    else:
        stdout().print(f"{pad}{safe(name)}: {safe(value)}", markup=False)
