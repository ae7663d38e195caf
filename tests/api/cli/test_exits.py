"""Exit codes, commands and options: the document and the program agree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import typer.main

from api.cli.exits import MEANINGS, ExitCode
from api.cli.main import app

TEXT = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()


def test_the_document_lists_every_exit_code() -> None:
    listed = re.findall(r"^\| (\d+) \| (\w+) \| (.+) \|$", TEXT, re.MULTILINE)
    real = [(str(int(code)), code.name, MEANINGS[code]) for code in ExitCode]
    assert listed == real


def commands() -> Iterator[tuple[str, set[str]]]:
    """Each command with its long options, as the program knows them."""
    root = typer.main.get_command(app)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", {name: command})
        for sub, leaf in inner.items():
            options = {
                option
                for parameter in leaf.params
                for option in getattr(parameter, "opts", ())
                if option.startswith("--") and option != "--help"
            }
            yield (name if sub == name else f"{name} {sub}"), options


def test_the_document_lists_every_command_with_its_options() -> None:
    rows = re.findall(r"^\| `pkforge ([a-z]+(?: [a-z]+)?)[^`]*` \| (.+) \|$", TEXT, re.MULTILINE)
    documented = {name: set(re.findall(r"`(--[a-z-]+)`", text)) for name, text in rows}
    assert documented == dict(commands())


def test_every_command_explains_itself() -> None:
    root = typer.main.get_command(app)
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        for leaf in getattr(command, "commands", {name: command}).values():
            assert leaf.help, name
            for parameter in leaf.params:
                assert getattr(parameter, "help", None), f"{name}: {parameter.name}"
