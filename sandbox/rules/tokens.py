"""C++ source as tokens with line numbers: enough to judge names, without a compiler's trust.

What a compiler reads in its own way before it sees tokens (line splices, raw strings, digraphs,
stray control characters) is not interpreted here but reported as a token of kind "obscure", for
the rules to refuse: nothing can then hide in the difference.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

Kind = Literal["directive", "name", "number", "text", "mark", "obscure"]

_TOKEN = re.compile(
    r"""
    (?P<splice>\\[ \t\v\f\r]*\n)
  | (?P<space>[ \t\n]+)
  | (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<raw>(?:u8|[uUL])?R")
  | (?P<text>(?:u8|[uUL])?"(?:\\[^\n]|[^"\\\n])*"|(?:u8|[uUL])?'(?:\\[^\n]|[^'\\\n])+')
  | (?P<digraph><:(?!:)|:>|<%|%>|%:)
  | (?P<number>\.?[0-9](?:[eEpP][+-]|'?[0-9A-Za-z_]|\.)*)
  | (?P<name>[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_\u0080-\U0010ffff]*)
  | (?P<stray>[^!-~]|[\\"'`@$]|/\*)
  | (?P<mark>::|->\*?|\[\[|\]\]|&&|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"#[^\n]*")
_OBSCURE = {
    "splice": "a backslash at the end of a line",
    "raw": "a raw string",
    "digraph": "a digraph",
    "stray": "a stray character",
}


@dataclass(frozen=True)
class Token:
    """One token; `line` counts from 1. A directive is one token of its whole line."""

    kind: Kind
    text: str
    line: int


def tokens(source: str) -> Iterator[Token]:
    """The tokens of a C++ source in order, without white space and comments.

    A comment that holds a line splice is "obscure" too: it may reach further than it looks.
    """
    text = source.replace("\r\n", "\n")
    ends = [match.start() for match in re.finditer("\n", text)]
    position, fresh_line = 0, True
    while position < len(text):
        line = bisect_right(ends, position - 1) + 1
        if fresh_line and (directive := _DIRECTIVE.match(text, position)):
            yield Token("directive", directive[0], line)
            position = directive.end()
            continue
        match = _TOKEN.match(text, position)
        assert match is not None, "the last alternative takes any character"
        kind = match.lastgroup or "mark"
        if kind in _OBSCURE:
            yield Token("obscure", _OBSCURE[kind], line)
        elif kind == "comment" and re.search(r"\\[ \t\v\f\r]*(\n|$)|[\r\v\f]", match[0]):
            yield Token("obscure", "a comment with a line splice or a control character", line)
        elif kind not in {"space", "comment"}:
            yield Token(cast(Kind, kind), match[0], line)
        fresh_line = "\n" in match[0] or (fresh_line and kind in {"space", "comment"})
        position = match.end()
