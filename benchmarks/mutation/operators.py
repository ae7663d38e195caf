"""How a kernel's source is broken: one small edit at one place for each mutant.

Only code of roles is touched: setup() is the author's declaration, and what is wrong there is
refused before anything runs.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Edit = tuple[int, int, str]  # from, to, and what takes its place


@dataclass(frozen=True)
class Mutant:
    """A kernel with one edit: what was done, in which line, and the whole source."""

    kernel: str
    operator: str
    line: int
    source: str


@dataclass(frozen=True)
class _Call:
    """`name(arguments);` somewhere in a source; the end is behind the semicolon."""

    start: int
    end: int
    name: str
    arguments: tuple[str, ...]

    def with_argument(self, number: int, text: str) -> str:
        """The call with another argument; negative numbers count from the last."""
        changed = list(self.arguments)
        changed[number] = text
        return f"{self.name}({', '.join(changed)});"


def mutants(kernel: str, source: str) -> Iterator[Mutant]:
    """Every place of every operator in the roles of a kernel."""
    roles = source.index("PK_ROLE")
    for operator, edits in _OPERATORS.items():
        for start, end, text in edits(source):
            edited = source[:start] + text + source[end:]
            if start >= roles and edited != source:
                yield Mutant(kernel, operator, source.count("\n", 0, start) + 1, edited)


def _calls(source: str, name: str) -> Iterator[_Call]:
    """Statements `name(...);`, also `x.name(...);`, with their arguments split at the top level.

    A call whose value is used is none: something stands before it on its line, or before its `;`.
    """
    for found in re.finditer(rf"(?<![\w])((?:\w+\.)?{name})\(", source):
        depth, at, first, arguments = 1, found.end(), found.end(), []
        while depth:
            character = source[at]
            depth += character in "([{"
            depth -= character in ")]}"
            if (character == "," and depth == 1) or not depth:
                arguments.append(source[first:at].strip())
                first = at + 1
            at += 1
        before = source[source.rindex("\n", 0, found.start()) : found.start()].strip()
        if source[at : at + 1] == ";" and not before.endswith(("=", "(", ",", "return")):
            yield _Call(found.start(), at + 1, found[1], tuple(arguments))


def _dropped(name: str) -> Callable[[str], Iterator[Edit]]:
    return lambda source: ((c.start, c.end, ";") for c in _calls(source, name))


def _doubled(name: str) -> Callable[[str], Iterator[Edit]]:
    def edits(source: str) -> Iterator[Edit]:
        for call in _calls(source, name):
            text = source[call.start : call.end]
            yield call.start, call.end, f"{{ {text} {text} }}"

    return edits


def _argument(name: str, number: int, form: str) -> Callable[[str], Iterator[Edit]]:
    """`form` has {} where the old argument goes."""

    def edits(source: str) -> Iterator[Edit]:
        for call in _calls(source, name):
            if call.arguments[0] == "self" and len(call.arguments) > 3:
                text = form.format(f"({call.arguments[number]})")
                yield call.start, call.end, call.with_argument(number, text)

    return edits


def _pattern(pattern: str, instead: str) -> Callable[[str], Iterator[Edit]]:
    def edits(source: str) -> Iterator[Edit]:
        for found in re.finditer(pattern, source):
            yield found.start(), found.end(), found.expand(instead)

    return edits


_OPERATORS: dict[str, Callable[[str], Iterator[Edit]]] = {
    "dropped signal": _dropped("signal"),
    "doubled signal": _doubled("signal"),
    "signal to oneself": _argument("signal", 2, "self.rank()"),
    "dropped wait": _dropped("wait"),
    "wait for one fewer": _argument("wait", -1, "{} - 1"),
    "wait for one more": _argument("wait", -1, "{} + 1"),
    "dropped store": _dropped("store_async"),
    "own memory for a peer's": _pattern(
        r"(g\.\w+)\[\(self\.rank\(\) \+ [^\[\]]*?% self\.world\(\)\]", r"\1[self.rank()]"
    ),
    "dropped release": _dropped("release"),
    "dropped commit": _dropped("commit"),
    "dropped post": _dropped("post"),
    "post to oneself": _argument("post", 2, "self.rank()"),
    "take from oneself": _argument("take", 3, "self.rank()"),
    "one rank left out": _pattern(r"(r < )self\.world\(\)(; \+\+r)", r"\1self.world() - 1\2"),
    "one task left out": _pattern(
        r"self\.tasks\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)\)", r"self.tasks(\1 - 1))"
    ),
}
