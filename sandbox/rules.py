"""What a pk kernel may not contain: a first filter that informs its author, not the defence itself.

The rules keep a kernel at the level of tiles, peers and signals, where the simulator sees all that
it does. Whoever gets past them is still in a sandbox, without the expected results.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from pk_runtime.candidate import Candidate
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


@dataclass(frozen=True)
class Rule:
    """Names that are forbidden, always or in some position, and what to say of them."""

    names: frozenset[str]
    why: str
    instead: str
    position: Callable[[Sequence[Token], int], bool] = lambda code, at: True


def _called(code: Sequence[Token], at: int) -> bool:
    """A call of a free function, not of a member and not of pk's own."""
    before = code[at - 1].text if at else ""
    qualified = before == "::" and at > 1 and code[at - 2].text == "pk"
    after = code[at + 1].text if at + 1 < len(code) else ""
    return after == "(" and before not in {".", "->"} and not qualified


def _member(code: Sequence[Token], at: int) -> bool:
    return at > 0 and code[at - 1].text in {".", "->", "::"}


def _qualifier(code: Sequence[Token], at: int) -> bool:
    """Part of a qualified name, or named as a namespace."""
    near = {code[i].text for i in (at - 1, at + 1) if 0 <= i < len(code)}
    return bool(near & {"::", "namespace"})


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


RULES = (
    Rule(
        _words("asm goto setjmp longjmp extern virtual friend union volatile mutable alloca"),
        "it reaches below the level of tiles",
        "Use tiles, rings and signals; state belongs into `args`, `shared` or local variables",
    ),
    Rule(
        _words("reinterpret_cast const_cast dynamic_cast typeid bitand this new delete bit_cast"),
        "it makes or changes raw pointers",
        "Use layouts and tiles; convert element types by assignment",
    ),
    Rule(
        _words("thread_local constinit"),
        "it keeps state between launches or ranks that the simulator cannot see",
        "Use `h.scratch` and `h.signals`, or local variables",
    ),
    Rule(
        _words("co_await co_yield co_return throw try catch import module export"),
        "it is not available on a GPU",
        "Use plain control flow",
    ),
    Rule(
        _words("sim detail"),
        "it names the runtime's insides",
        "Use the names that docs/pk_guide.md lists",
        _qualifier,
    ),
    Rule(
        _words("data ref storage f state_ get bits"),
        "it is an inside of tiles, layouts or workers",
        "Use load, store and map on tiles; give a member of your own another name",
        _member,
    ),
    Rule(
        _words("main pk_program"),
        "it replaces a part of the program around the kernel",
        "End the file with PK_KERNEL(name)",
    ),
    Rule(
        _words(
            "printf fprintf sprintf puts putchar fopen fdopen freopen fread fwrite fclose fputs "
            "open openat read write close unlink rename mkdir remove popen dlopen dlsym "
            "malloc calloc realloc free memcpy memmove memset mmap mprotect brk sbrk "
            "system exec execv execve fork vfork clone kill raise abort exit _exit quick_exit "
            "atexit syscall ptrace prctl ioctl socket connect bind listen accept send recv "
            "pthread_create sleep usleep nanosleep sched_yield sigaction "
            "time clock clock_gettime gettimeofday getenv setenv putenv rand srand random"
        ),
        "it leaves the kernel for the operating system",
        "A kernel computes with pk functions only; names of your own must differ from this one",
        _called,
    ),
)

STD_ALLOWED = _words(
    "size_t int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t is_same_v "
    "conditional_t integral_constant bool_constant true_type false_type remove_cvref_t "
    "integer_sequence make_integer_sequence index_sequence make_index_sequence numeric_limits"
)
ATTRIBUTES_ALLOWED = _words("maybe_unused nodiscard likely unlikely fallthrough")
ELEMENT_TYPES = _words("void bool char short int long unsigned signed float double bf16 fp16 auto")
INCLUDE = re.compile(r"#[ \t]*include[ \t]*<pk/pk\.h>[ \t]*(//[^\n]*)?")
PRAGMA = re.compile(r"#[ \t]*pragma[ \t]+(once|unroll([ \t]+\d+|[ \t]*\(\d+\))?)[ \t]*(//[^\n]*)?")
_RESERVED = re.compile(r"__|^_[A-Z]")
_BEFORE_UNARY = _words("( , = { } ; return ? : + - * / % ! ~ | < & &&") | {""}


def scan(candidate: Candidate) -> tuple[Violation, ...]:
    """Everything forbidden in a "pk" candidate, in order; nothing for other languages."""
    if candidate.language != "pk":
        return ()
    found: list[Violation] = []
    for name, source in candidate.files.items():
        code = list(tokens(source))
        for line, token, why, instead in _violations(code):
            found.append(Violation(name, line, token, why, instead))
    return tuple(sorted(set(found), key=lambda v: (v.file, v.line, v.token)))


Place = tuple[int, str, str, str]


def _violations(code: list[Token]) -> Iterator[Place]:
    yield from _directives(code)
    plain = [token for token in code if token.kind not in {"directive", "obscure"}]
    for at, token in enumerate(plain):
        if token.kind == "name":
            yield from _names(plain, at)
        elif token.kind == "mark":
            yield from _marks(plain, at)
    yield from _globals(plain)


def _directives(code: Iterable[Token]) -> Iterator[Place]:
    for token in code:
        if token.kind == "obscure":
            yield (token.line, token.text, "a compiler may read it differently than a person",
                   "Write plain ASCII code; end strings and comments on their line")  # fmt: skip
        elif token.kind == "directive" and not (
            INCLUDE.fullmatch(token.text) or PRAGMA.fullmatch(token.text)
        ):
            yield (token.line, token.text[:60], "the preprocessor can disguise anything",
                   "Use only #include <pk/pk.h>, constexpr values and templates")  # fmt: skip


def _names(code: Sequence[Token], at: int) -> Iterator[Place]:
    token = code[at]
    for rule in RULES:
        if token.text in rule.names and rule.position(code, at):
            yield token.line, token.text, rule.why, rule.instead
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
    if token.text == "static" and not _stateless(code, at):
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
    if token.text == "[[":
        for inner in code[at + 1 :]:
            if inner.text == "]]":
                break
            if inner.kind == "name" and inner.text not in ATTRIBUTES_ALLOWED:
                yield (inner.line, f"[[{inner.text}]]", "this attribute changes how code is built",
                       "Leave it out")  # fmt: skip


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


def _stateless(code: Sequence[Token], at: int) -> bool:
    """Whether `static` at this place belongs to a constant or to a function with a body."""
    depth = 0
    for position in range(at + 1, len(code)):
        text = code[position].text
        if depth == 0 and text in {"constexpr", "consteval"}:
            return True
        if depth == 0 and text in {"=", ";", "{", "["}:
            return False
        if depth == 0 and text == "(":
            return _has_body(code, position)
        depth += (text in {"<"}) - (text in {">"})
    return False


def _has_body(code: Sequence[Token], opening: int) -> bool:
    """Whether the parameter list that opens here is followed by a function body."""
    position = _closing(code, opening) + 1
    while position < len(code) and code[position].text not in {"{", ";", "="}:
        position += 1
    return position < len(code) and code[position].text == "{"


def _binds_structure(code: Sequence[Token], at: int) -> bool:
    following = [token.text for token in code[at + 1 : at + 3]]
    return following[:1] == ["["] or (following[:1] in (["&"], ["&&"]) and following[1:] == ["["])


def _closing(code: Sequence[Token], opening: int) -> int:
    """Index of the bracket that closes the one at `opening`, or the end of the code."""
    depth = 0
    for position in range(opening, len(code)):
        depth += (code[position].text in "([{") - (code[position].text in ")]}")
        if depth == 0:
            return position
    return len(code)


# --- variables outside functions ---------------------------------------------------------------


def _globals(code: Sequence[Token]) -> Iterator[Place]:
    """Mutable variables at namespace level, which all ranks would share."""
    for statement in _statements(code):
        if not _harmless(statement):
            shown = " ".join(token.text for token in statement[:6])
            yield (statement[0].line, shown, "a variable out here is shared by all ranks",
                   "Make it constexpr, or move it into `args`, `shared` or a role")  # fmt: skip


def _statements(code: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Namespace-level statements; what stands inside a namespace counts as level with it."""
    start = position = 0
    while position < len(code):
        text = code[position].text
        if text == "{":
            if code[start].text in {"namespace", "inline"} and _opens_namespace(code, start):
                position += 1
                start = position
                continue
            position = _closing(code, position)
            if _ends_with_body(code[start:position]):
                yield code[start : position + 1]
                start = position + 1
        elif text in {"(", "["}:
            position = _closing(code, position)
            if code[start].text == "PK_KERNEL":
                yield code[start : position + 1]
                start = position + 1
        elif text == ";":
            yield code[start : position + 1]
            start = position + 1
        elif text == "}":
            start = position + 1
        position += 1
    if start < len(code):
        yield code[start:]


def _opens_namespace(code: Sequence[Token], start: int) -> bool:
    for token in code[start:]:
        if token.text == "namespace":
            return True
        if token.text != "inline":
            return False
    return False


def _ends_with_body(statement: Sequence[Token]) -> bool:
    """Whether a brace block ends this statement: a function, not a type or an initialiser."""
    words = _head(statement)
    if words & {"struct", "class", "enum", "union"} and "(" not in words:
        return False
    return "(" in words and "=" not in words


def _head(statement: Sequence[Token]) -> set[str]:
    """The words of a statement before its first brace, without its template parameters."""
    words: set[str] = set()
    rest = list(_without_templates(statement))
    for token in rest:
        if token.text == "{":
            break
        words.add(token.text)
    return words


def _without_templates(statement: Sequence[Token]) -> Iterator[Token]:
    position = 0
    while position < len(statement):
        if statement[position].text == "template":
            depth = 0
            while position + 1 < len(statement):
                position += 1
                depth += (statement[position].text == "<") - (statement[position].text == ">")
                if depth == 0:
                    break
        else:
            yield statement[position]
        position += 1


def _harmless(statement: Sequence[Token]) -> bool:
    words = _head(statement)
    first = next(_without_templates(statement), None)
    if first is None or first.text in {";", "using", "static_assert", "namespace", "PK_KERNEL"}:
        return True
    if first.text in {"concept", "typedef"} or words & {"constexpr", "consteval"}:
        return True
    if words & {"struct", "class", "enum"} and "(" not in words and "=" not in words:
        last = [token.text for token in statement[-2:]]
        return last == ["}", ";"] or "{" not in {token.text for token in statement}
    return _ends_with_body(statement) and statement[-1].text == "}"
