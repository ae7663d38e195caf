"""What rules are made of: names in a position, include lines, variables outside functions."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sandbox.rules.tokens import Token

# Line, token, why it is forbidden, what to write instead.
Place = tuple[int, str, str, str]

# The macros that end a kernel's file.
ENDS = frozenset({"PK_KERNEL", "PK_RAW"})
PRAGMA = re.compile(r"#[ \t]*pragma[ \t]+(once|unroll([ \t]+\d+|[ \t]*\(\d+\))?)[ \t]*(//[^\n]*)?")


@dataclass(frozen=True)
class Rule:
    """Names that are forbidden, always or in some position, and what to say of them."""

    names: frozenset[str]
    why: str
    instead: str
    position: Callable[[Sequence[Token], int], bool] = lambda code, at: True


def called(code: Sequence[Token], at: int) -> bool:
    """A call of a free function, not of a member and not of pk's own."""
    before = code[at - 1].text if at else ""
    qualified = before == "::" and at > 1 and code[at - 2].text in {"pk", "raw"}
    after = code[at + 1].text if at + 1 < len(code) else ""
    return after == "(" and before not in {".", "->"} and not qualified


def member(code: Sequence[Token], at: int) -> bool:
    """A member of something."""
    return at > 0 and code[at - 1].text in {".", "->", "::"}


def qualifier(code: Sequence[Token], at: int) -> bool:
    """Part of a qualified name, or named as a namespace."""
    near = {code[i].text for i in (at - 1, at + 1) if 0 <= i < len(code)}
    return bool(near & {"::", "namespace"})


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


# Words before a name that make it an expression and not a declaration.
KEYWORDS = words(
    "return else case do goto new delete throw sizeof typename namespace operator using template "
    "co_return co_yield if while for switch and or not"
)
ATTRIBUTES_ALLOWED = words("maybe_unused nodiscard likely unlikely fallthrough")
OPERATING_SYSTEM = words(
    "printf fprintf sprintf puts putchar fopen fdopen freopen fread fwrite fclose fputs "
    "open openat read write close unlink rename mkdir remove popen dlopen dlsym "
    "malloc calloc realloc free memcpy memmove memset mmap mprotect brk sbrk "
    "system exec execv execve fork vfork clone kill raise abort exit _exit quick_exit "
    "atexit syscall ptrace prctl ioctl socket connect bind listen accept send recv "
    "pthread_create sleep usleep nanosleep sched_yield sigaction "
    "time clock clock_gettime gettimeofday getenv setenv putenv rand srand random"
)


def matches(rules: Iterable[Rule], code: Sequence[Token], at: int) -> Iterator[Place]:
    """What the rules say of the name at this place."""
    token = code[at]
    for rule in rules:
        if token.text in rule.names and rule.position(code, at):
            yield token.line, token.text, rule.why, rule.instead


def directives(
    code: Iterable[Token], included: Callable[[str], bool], instead: str
) -> Iterator[Place]:
    """Preprocessor lines other than the includes allowed and harmless pragmas; obscure text."""
    for token in code:
        if token.kind == "obscure":
            yield (token.line, token.text, "a compiler may read it differently than a person",
                   "Write plain ASCII code; end strings and comments on their line")  # fmt: skip
        elif token.kind == "directive" and not (
            included(token.text) or PRAGMA.fullmatch(token.text)
        ):
            yield (token.line, token.text[:60], "the preprocessor can disguise anything", instead)


def attributes(code: Sequence[Token], at: int) -> Iterator[Place]:
    """The attributes of a list that opens here that are not harmless."""
    if code[at].text != "[[":
        return
    for inner in code[at + 1 :]:
        if inner.text == "]]":
            break
        if inner.kind == "name" and inner.text not in ATTRIBUTES_ALLOWED:
            yield (inner.line, f"[[{inner.text}]]", "this attribute changes how code is built",
                   "Leave it out")  # fmt: skip


def closing(code: Sequence[Token], opening: int) -> int:
    """Index of the bracket that closes the one at `opening`, or the end of the code."""
    depth = 0
    for position in range(opening, len(code)):
        depth += (code[position].text in "([{") - (code[position].text in ")]}")
        if depth == 0:
            return position
    return len(code)


def stateless(code: Sequence[Token], at: int) -> bool:
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
    position = closing(code, opening) + 1
    while position < len(code) and code[position].text not in {"{", ";", "="}:
        position += 1
    return position < len(code) and code[position].text == "{"


# --- variables outside functions ---------------------------------------------------------------


def shared_variables(code: Sequence[Token]) -> Iterator[Place]:
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
            position = closing(code, position)
            if _ends_with_body(code[start:position]):
                yield code[start : position + 1]
                start = position + 1
        elif text in {"(", "["}:
            position = closing(code, position)
            if code[start].text in ENDS:
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
    names = _head(statement)
    if names & {"struct", "class", "enum", "union"} and "(" not in names:
        return False
    return "(" in names and "=" not in names


def _head(statement: Sequence[Token]) -> set[str]:
    """The words of a statement before its first brace, without its template parameters."""
    names: set[str] = set()
    rest = list(_without_templates(statement))
    for token in rest:
        if token.text == "{":
            break
        names.add(token.text)
    return names


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
    names = _head(statement)
    first = next(_without_templates(statement), None)
    if first is None or first.text in {";", "using", "static_assert", "namespace", "extern"} | ENDS:
        return True
    if first.text in {"concept", "typedef"} or names & {"constexpr", "consteval"}:
        return True
    if names & {"struct", "class", "enum"} and "(" not in names and "=" not in names:
        last = [token.text for token in statement[-2:]]
        return last == ["}", ";"] or "{" not in {token.text for token in statement}
    return _ends_with_body(statement) and statement[-1].text == "}"
