"""What a pk kernel may not contain: a first filter that informs its author, not the defence itself.

The rules keep a kernel at the level of tiles, peers and signals, where the simulator sees all that
it does. Whoever gets past them is still in a sandbox, without the expected results.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from pk_runtime.candidate import Candidate
from sandbox import raw_rules
from sandbox.rule_parts import (
    OPERATING_SYSTEM,
    Place,
    Rule,
    attributes,
    called,
    directives,
    matches,
    member,
    qualifier,
    shared_variables,
    stateless,
    words,
)
from sandbox.tokens import Token, tokens


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
        words("asm goto setjmp longjmp extern virtual friend union volatile mutable alloca"),
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
        words("data ref storage f state_ get bits"),
        "it is an inside of tiles, layouts or workers",
        "Use load, store and map on tiles; give a member of your own another name",
        member,
    ),
    Rule(
        words("main pk_program"),
        "it replaces a part of the program around the kernel",
        "End the file with PK_KERNEL(name)",
    ),
    Rule(
        OPERATING_SYSTEM,
        "it leaves the kernel for the operating system",
        "A kernel computes with pk functions only; names of your own must differ from this one",
        called,
    ),
)

STD_ALLOWED = words(
    "size_t int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t is_same_v "
    "conditional_t integral_constant bool_constant true_type false_type remove_cvref_t "
    "integer_sequence make_integer_sequence index_sequence make_index_sequence numeric_limits"
)
ELEMENT_TYPES = words("void bool char short int long unsigned signed float double bf16 fp16 auto")
INCLUDE = re.compile(r"#[ \t]*include[ \t]*<pk/pk\.h>[ \t]*(//[^\n]*)?")
_RESERVED = re.compile(r"__|^_[A-Z]")
_BEFORE_UNARY = words("( , = { } ; return ? : + - * / % ! ~ | < & &&") | {""}


def scan(candidate: Candidate) -> tuple[Violation, ...]:
    """Everything forbidden in a "pk" or "cuda" candidate, in order; nothing for other languages."""
    if candidate.language == "triton":
        return ()
    found: list[Violation] = []
    for name, source in candidate.files.items():
        code = list(tokens(source))
        raw = candidate.language == "cuda"
        places = raw_rules.violations(code, candidate.files) if raw else _violations(code)
        for line, token, why, instead in places:
            found.append(Violation(name, line, token, why, instead))
    return tuple(sorted(set(found), key=lambda v: (v.file, v.line, v.token)))


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
    if token.text == "auto" and _binds_structure(code, at):
        yield (token.line, "auto [", "structured bindings open the insides of layouts and tiles",
               "Name the members that you need")  # fmt: skip


def _marks(code: Sequence[Token], at: int) -> Iterator[Place]:
    token = code[at]
    before = code[at - 1] if at else Token("mark", "", 0)
    after = code[at + 1].text if at + 1 < len(code) else ""
    if token.text == "&" and before.text in _BEFORE_UNARY and not _captured(code, at):
        yield (token.line, f"&{after}", "it takes the address of something",
               "Pass tiles and layouts by reference; there is no use for pointers")  # fmt: skip
    if token.text == "*" and (before.text in ELEMENT_TYPES or after in {")", ">", ","}):
        yield (token.line, f"{before.text}*", "it is a pointer",
               "Use layouts and tiles; pass values and references")  # fmt: skip
    if token.text == "::" and before.kind != "name" and before.text != ">":
        yield (token.line, f"::{after}", "it reaches around pk into the global names",
               "Use the name without the leading ::")  # fmt: skip
    yield from attributes(code, at)


def _captured(code: Sequence[Token], at: int) -> bool:
    """Whether the nearest bracket around this place is a square one: the captures of a lambda."""
    depth = 0
    for token in reversed(code[:at]):
        depth += (token.text in ")]}") - (token.text in "([{")
        if depth < 0:
            return token.text == "["
    return False


def _using(code: Sequence[Token], at: int) -> bool:
    return at > 0 and code[at - 1].text == "using"


def _binds_structure(code: Sequence[Token], at: int) -> bool:
    following = [token.text for token in code[at + 1 : at + 3]]
    return following[:1] == ["["] or (following[:1] in (["&"], ["&&"]) and following[1:] == ["["])
