"""`pkforge problem`: the operators that kernels are written for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli.options import Json, Url

app = typer.Typer(help="Operators that kernels are written for.", no_args_is_help=True)

# The service describes and lints the file in a sandbox, with limits of its own.
_LOOKED_AT_WITHIN_S = 900.0


@app.command("list")
def list_problems(url: Url = None, as_json: Json = False) -> None:
    """List the problems: those pkforge ships and those users added."""
    from rich.table import Table

    from api.cli.console import print_json, safe, stdout
    from api.cli.options import client

    with client(url) as service:
        items = service.get("/v1/problems")["items"]
    if as_json:
        print_json(items)
        return
    table = Table("number", "problem", "category", "origin", "title", box=None, pad_edge=False)
    for item in items:
        number = "" if item["number"] is None else str(item["number"])
        cells = (number, item["slug"], item["category"], item["origin"], item["title"])
        table.add_row(*map(_plain, map(safe, cells)))
    stdout().print(table)


@app.command("show")
def show_problem(
    name: Annotated[str, typer.Argument(help="Slug or number of the problem.")],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show a problem: its task, tensors and shapes."""
    from urllib.parse import quote

    from api.cli.console import print_json, safe, stdout
    from api.cli.options import client

    with client(url) as service:
        problem = service.get(f"/v1/problems/{quote(name, safe='')}")
    if as_json:
        print_json(problem)
        return
    number = "" if problem["number"] is None else f" (number {problem['number']})"
    lines = [
        f"{problem['slug']}{number}: {problem['title']}",
        f"category {problem['category']}, {problem['origin']}, tolerance {problem['tolerance']}, "
        f"{problem['dtype']}",
        f"inputs {', '.join(problem['inputs'])}; outputs {', '.join(problem['outputs'])}",
        "",
        problem["statement"].rstrip(),
        "",
        f"inputs are multiplied by 2^{problem['scales'][0]} to 2^{problem['scales'][1]}",
        *_calibrated(problem["calibration"]),
        "",
        "shapes:",
    ]
    for shape in problem["shapes"]:
        sizes = " ".join(f"{letter}={size}" for letter, size in shape["dims"].items())
        lines.append(f"  {shape['name']} ({shape['kind']}): {sizes}")
    stdout().print(safe("\n".join(lines)), markup=False)


@app.command("add")
def add_problem(
    file: Annotated[Path, typer.Argument(help="Python file with one subclass of Problem.")],
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Add a problem of your own. The service loads the file only inside a sandbox."""
    from api.cli.console import note, print_json, safe
    from api.cli.files import LARGEST_PROBLEM_BYTES, read_text
    from api.cli.options import client

    source = read_text(file, LARGEST_PROBLEM_BYTES)
    with client(url) as service:
        note(f"the service loads and checks {file.name} in a sandbox ...")
        body = {"source": source, "filename": file.name}
        problem = service.post("/v1/problems", body, within_s=_LOOKED_AT_WITHIN_S)
    if as_json:
        print_json(problem)
        return
    print(f"added {safe(problem['slug'])}: {safe(problem['title'])}")


def _calibrated(found: dict[str, Any] | None) -> list[str]:
    """What separates honest rounding from mistakes; nothing where results are bit-exact."""
    if found is None or not found["noise"]:
        return []
    most = max(found["noise"], key=lambda noise: max(noise["max"], noise["rms"]))
    share = max(most["max"], most["rms"])
    gap = found["gap"]
    lost = "is never finite" if gap is None else f"errs {gap:.3g} times as much as the reference"
    return [
        f"honest variants use at most {share:.2g} of the tolerance ({most['variant']})",
        f"without one rank the result {lost}",
    ]


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)
