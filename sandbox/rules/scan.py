"""What a kernel may not contain: a first filter that informs its author, not the defence itself.

The rules keep a kernel at the level of tiles, peers and signals, where the simulator sees all that
it does. Whoever gets past them is still in a sandbox, without the expected results.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from pk_runtime.candidate import Candidate
from sandbox.rules import raw, triton
from sandbox.rules.memory import memory
from sandbox.rules.names import known_names
from sandbox.rules.parts import (
    Place,
    Rule,
    attributes,
    directives,
    matches,
    member,
    qualifier,
    shared_variables,
    stateless,
    words,
)
from sandbox.rules.tokens import Token, tokens


@dataclass(frozen=True)
class Violation:
    """One forbidden thing: where, what, why, and what to write instead."""

    file: str
    line: int
    token: str
    why: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.token}: {self.why}. {self.instead}"

    def to_json(self) -> dict[str, str | int]:
        """The violation as JSON."""
        return asdict(self)


RULES = (
    Rule(
        words("asm goto extern virtual friend union volatile mutable decltype typedef operator"),
        "it reaches below the level of tiles",
        "Use tiles, rings and signals; state belongs into `args`, `shared` or local variables",
    ),
    Rule(
        words("reinterpret_cast const_cast dynamic_cast typeid bitand this new delete bit_cast"),
        "it makes or changes raw pointers",
        "Use layouts and tiles; convert element types by assignment",
    ),
    Rule(
        words("thread_local constinit"),
        "it keeps state between launches or ranks that the simulator cannot see",
        "Use `h.scratch` and `h.signals`, or local variables",
    ),
    Rule(
        words("co_await co_yield co_return throw try catch import module export"),
        "it is not available on a GPU",
        "Use plain control flow",
    ),
    Rule(
        words("sim detail"),
        "it names the runtime's insides",
        "Use the names that docs/pk_guide.md lists",
        qualifier,
    ),
    Rule(
        words("data ref storage f state_ get bits peers core slots ready_at element_at"),
        "it is an inside of tiles, layouts or workers",
        "Use load, store and map on tiles; give a member of your own another name",
        member,
    ),
    Rule(
        words("main pk_program"),
        "it replaces a part of the program around the kernel",
        "End the file with PK_KERNEL(name)",
    ),
)

STD_ALLOWED = words(
    "size_t int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t is_same_v "
    "conditional_t integral_constant bool_constant true_type false_type remove_cvref_t "
    "integer_sequence make_integer_sequence index_sequence make_index_sequence numeric_limits"
)
INCLUDE = re.compile(r"#[ \t]*include[ \t]*<pk/pk\.h>[ \t]*(//[^\n]*)?")
_RESERVED = re.compile(r"__|^_[A-Z]")


def scan(candidate: Candidate) -> tuple[Violation, ...]:
    """Everything forbidden in a candidate, by file and line."""
    found: list[Violation] = []
    for name, source in candidate.files.items():
        for line, token, why, instead in _places(candidate, source):
            found.append(Violation(name, line, token, why, instead))
    return tuple(sorted(set(found), key=lambda v: (v.file, v.line, v.token)))


def _places(candidate: Candidate, source: str) -> Iterator[Place]:
    if candidate.language == "triton":
        return triton.violations(source, candidate.files)
    code = list(tokens(source))
    if candidate.language == "cuda":
        return raw.violations(code, candidate.files)
    return _violations(code)


def _violations(code: list[Token]) -> Iterator[Place]:
    instead = "Use only #include <pk/pk.h>, constexpr values and templates"
    yield from directives(code, lambda line: INCLUDE.fullmatch(line) is not None, instead)
    plain = [token for token in code if token.kind not in {"directive", "obscure"}]
    for at, token in enumerate(plain):
        if token.kind == "name":
            yield from _names(plain, at)
        elif token.kind == "mark":
            yield from _marks(plain, at)
    yield from shared_variables(plain)
    yield from memory(plain)


def _names(code: Sequence[Token], at: int) -> Iterator[Place]:
    token = code[at]
    yield from matches(RULES, code, at)
    if _RESERVED.search(token.text):
        yield (token.line, token.text, "names like this belong to the compiler",
               "Choose a name without a double underscore and without a leading one")  # fmt: skip
    following = [other.text for other in code[at + 1 : at + 3]]
    if token.text == "std" and not (following[:1] == ["::"] and following[-1] in STD_ALLOWED):
        name = "std::" + following[-1] if following[:1] == ["::"] else "std"
        yield (token.line, name, "the standard library is not available on a GPU",
               "Use pk functions and plain arithmetic")  # fmt: skip
    if token.text == "namespace" and following[:1] in (["pk"], ["sim"]) and not _using(code, at):
        yield (token.line, f"namespace {following[0]}", "it adds to the runtime's own names",
               "Define your names outside")  # fmt: skip
    if token.text == "static" and not stateless(code, at):
        yield (token.line, "static", "a static variable is shared by all ranks and launches",
               "Use constexpr, `shared`, `h.scratch` or a local variable")  # fmt: skip
    yield from known_names(code, at)


def _marks(code: Sequence[Token], at: int) -> Iterator[Place]:
    token = code[at]
    before = code[at - 1] if at else Token("mark", "", 0)
    after = code[at + 1].text if at + 1 < len(code) else ""
    if token.text == "::" and before.kind != "name" and before.text != ">":
        yield (token.line, f"::{after}", "it reaches around pk into the global names",
               "Use the name without the leading ::")  # fmt: skip
    yield from attributes(code, at)


def _using(code: Sequence[Token], at: int) -> bool:
    return at > 0 and code[at - 1].text == "using"
