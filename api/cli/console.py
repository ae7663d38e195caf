"""Where output goes: stdout holds data, stderr holds progress and messages."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_WIDTH = 400


def stdout() -> Console:
    """The console for data; colours only on a terminal, never with NO_COLOR."""
    from rich.console import Console

    # A file or a pipe has no width that tables would have to be cut to.
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(file=sys.stdout, width=width, soft_wrap=True, highlight=False, emoji=False)


def stderr() -> Console:
    """The console for progress and messages."""
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False, emoji=False)


def print_json(document: Any) -> None:
    """Write exactly one JSON document to stdout, indented."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_json_line(document: Any) -> None:
    """Write one JSON document on one line to stdout and flush it, for JSON Lines readers."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def note(message: str) -> None:
    """Write one plain progress line to stderr."""
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


def safe(text: object) -> str:
    """`text` with every control character but newline and tab made visible.

    Candidates, problem files and models write text that reaches a person's terminal; an escape
    sequence in it could otherwise rewrite what the person sees.
    """
    return "".join(
        char if char in "\n\t" or char.isprintable() else f"\\x{ord(char):02x}"
        for char in str(text)
    )
