"""What keeps a pk kernel inside its own objects: no pointers, no casts between classes, no windows.

The simulator runs a kernel as native code beside the engine that times it, so a kernel that could
write anywhere could write its own time. Without pointers and casts what remains is indexing arrays,
which the compiler checks (pk_runtime/compiler.py).
"""

from collections.abc import Iterator, Sequence

from sandbox.rules.parts import KEYWORDS, Place, closing, words
from sandbox.rules.tokens import Token

ELEMENT_TYPES = words(
    "void bool char short int long unsigned signed float double bf16 fp16 auto const"
)
_POINTER = "Use layouts and tiles; pass values and references"
_REFERENCE = "Take references as named parameters, or as variables with an initialiser"
_BEFORE_UNARY = words("( , = { } ; return ? : + - * / % ! ~ | < & && [") | {""}
OPENING, CLOSING = words("( [ { [["), words(") ] } ]]")
# Where a type could end before `&` and an operand follow: a cast and not a parameter.
_OPERANDS = words("( [ ~ !")
# Who takes a text.
_TEXTS = words(
    "knob static_assert require input output input_parts scratch signals barrier mailbox dim"
)


def memory(code: Sequence[Token]) -> Iterator[Place]:
    """Everything that makes, casts or binds memory, in a whole file."""
    parameters, types = _template_parameters(code), _own_types(code)
    arrays = _arrays(code)
    for at, token in enumerate(code):
        if token.text == "return":
            yield from _returned(code, at)
        elif token.text in {"&", "&&"} and not captured(code, at):
            yield from _ampersand(code, at, parameters)
        elif token.text == "*":
            yield from _star(code, at, parameters | types)
        elif token.text == "template":
            yield from _specialised(code, at)
        elif token.text in {"struct", "class"}:
            yield from _derived(code, at)
        elif token.kind == "text" and token.text.endswith('"'):
            yield from _text(code, at)
        elif token.kind == "name":
            if token.text in arrays:
                yield from _whole_array(code, at)
                yield from _sizes(code, at)
            if token.text == "auto" and _binds(code, at):
                yield (token.line, "auto [", "structured bindings open the insides of layouts",
                       "Name the members that you need")  # fmt: skip


def captured(code: Sequence[Token], at: int) -> bool:
    """Whether the nearest bracket around this place is a square one: the captures of a lambda."""
    depth = 0
    for token in reversed(code[:at]):
        depth += (token.text in CLOSING) - (token.text in OPENING)
        if depth < 0:
            return token.text == "["
    return False


def _ampersand(code: Sequence[Token], at: int, parameters: frozenset[str]) -> Iterator[Place]:
    token = code[at]
    before, after = code[at - 1].text if at else "", _text_at(code, at + 1)
    if token.text == "&" and before in _BEFORE_UNARY:
        yield (token.line, f"&{after}", "it takes the address of something",
               "Pass tiles and layouts by reference; there is no use for pointers")  # fmt: skip
    elif after in {">", ";", "...", "]", "{"} or (after == "," and not _in_parameters(code, at)):
        yield (
            token.line,
            f"{before}{token.text}",
            "it makes a reference type by itself",
            _REFERENCE,
        )
    elif after == ")" and _casts(code, at):
        yield (token.line, f"({before}{token.text})", "it casts to a reference of another type",
               _REFERENCE)  # fmt: skip
    elif token.text == "&&" and (before == "auto" or before in parameters):
        yield (
            token.line,
            f"{before}&&",
            "it deduces a reference type",
            "Write `auto&` or `const T&`",
        )
    elif _text_at(code, at + 2) == ";" and _is_declaration(code, at):
        yield (token.line, f"{before}{token.text} {after}", "it is a reference without initialiser",
               "Hold values; pass references as parameters")  # fmt: skip
    elif _text_at(code, at + 2) == "(" and after not in KEYWORDS and _is_declaration(code, at):
        yield (token.line, f"{before}& {after}()", "it returns a reference, which may outlive what "
               "it is bound to", "Return values")  # fmt: skip


def _casts(code: Sequence[Token], at: int) -> bool:
    """Whether what follows the parenthesis after this place is an operand."""
    follows = code[at + 2] if at + 2 < len(code) else Token("mark", "", 0)
    declarator = follows.text in {"const", "noexcept", "requires", "override"}
    operand = follows.kind in {"name", "number", "text"} or follows.text in _OPERANDS
    return operand and not declarator


def _in_parameters(code: Sequence[Token], at: int) -> bool:
    """Whether the nearest bracket around this place is round and not that of a template."""
    depth = 0
    for token in reversed(code[:at]):
        depth += token.text in CLOSING or token.text == ">"
        depth -= token.text in OPENING or token.text == "<"
        if depth < 0:
            return token.text == "("
    return False


def _is_declaration(code: Sequence[Token], at: int) -> bool:
    """Whether the statement up to this place can only be a type: no operator, call or return."""
    for token in reversed(code[:at]):
        if token.text in {";", "{", "}"}:
            return True
        if token.text in {"=", "(", ")", "return", "?", "[", "]", "case", "!", "+", "-", "|"}:
            return False
        if token.kind in {"number", "text"} and token.text != "0":
            return True  # a template argument
    return True


def _star(code: Sequence[Token], at: int, types: frozenset[str]) -> Iterator[Place]:
    before, after = code[at - 1].text if at else "", _text_at(code, at + 1)
    if before in _BEFORE_UNARY:
        yield (code[at].line, f"*{after}", "it follows a pointer", _POINTER)
    elif before in ELEMENT_TYPES | types or after in {")", ">", ","} or before == ">":
        yield (code[at].line, f"{before}*", "it is a pointer", _POINTER)


def _specialised(code: Sequence[Token], at: int) -> Iterator[Place]:
    before, after = code[at - 1].text if at else "", [_text_at(code, at + i) for i in (1, 2)]
    if after == ["<", ">"] or (after[0] != "<" and before not in {".", "->", "::"}):
        yield (code[at].line, "template <>", "it replaces a part of the runtime for some types",
               "Write a function or a type of your own")  # fmt: skip


def _derived(code: Sequence[Token], at: int) -> Iterator[Place]:
    """A struct with bases: its members see what the bases hide behind a dot."""
    if at and code[at - 1].text in {"enum", "<", ","}:
        return
    for token in code[at + 1 :]:
        if token.text in {"{", ";", ")", ">", "="}:
            return
        if token.text == ":":
            yield (token.line, "struct ... :", "it derives from another type",
                   "Make it a member")  # fmt: skip
            return


def _text(code: Sequence[Token], at: int) -> Iterator[Place]:
    depth = 0
    for position in range(at - 1, -1, -1):
        text = code[position].text
        depth += (text in CLOSING) - (text in OPENING)
        if depth < 0:
            if text == "(" and position and code[position - 1].text in _TEXTS:
                return
            break
    yield (code[at].line, code[at].text[:40], "a text is an array of characters, and a pointer",
           "Texts name tensors, signals and knobs; there is no other use for them")  # fmt: skip


def _whole_array(code: Sequence[Token], at: int) -> Iterator[Place]:
    before, after = code[at - 1].text if at else "", _text_at(code, at + 1)
    ranged = before == ":" and after == ")"
    if (
        after not in {"[", "{"}
        and not ranged
        and not (before == "(" and after == ")" and at > 1 and code[at - 2].text == "sizeof")
    ):
        yield (code[at].line, code[at].text, "an array without an index becomes a pointer",
               "Index it, or loop over it with `for (auto x : array)`")  # fmt: skip


def _returned(code: Sequence[Token], at: int) -> Iterator[Place]:
    """A lambda that is returned outlives what it holds references to."""
    if _text_at(code, at + 1) != "[":
        return
    for token in code[at + 2 :]:
        if token.text == "]":
            return
        if token.text == "&":
            yield (token.line, "return [&", "it returns references to variables that are gone",
                   "Capture values")  # fmt: skip


def _sizes(code: Sequence[Token], at: int) -> Iterator[Place]:
    """An array that is declared here must have one size, and that above zero."""
    if not at or not _typed(code[at - 1]) or _text_at(code, at + 1) != "[":
        return
    size, end = _text_at(code, at + 2), _text_at(code, at + 3)
    if (size == "]" and end != "=") or (size == "0" and end == "]"):
        yield (code[at].line, f"{code[at].text}[]", "an array of no size has no bounds",
               "Give it a size")  # fmt: skip
    if _text_at(code, closing(code, at + 1) + 1) == "[":
        yield (code[at].line, f"{code[at].text}[][]", "an array of arrays hands out pointers",
               "Use one index: [row * columns + column]")  # fmt: skip


def _arrays(code: Sequence[Token]) -> frozenset[str]:
    """Names that are declared as arrays anywhere."""
    found = set()
    for at in range(1, len(code) - 1):
        token, before = code[at], code[at - 1]
        if token.kind == "name" and code[at + 1].text == "[" and _typed(before):
            found.add(token.text)
    return frozenset(found)


def _typed(before: Token) -> bool:
    return before.text in {">", "&"} or (before.kind == "name" and before.text not in KEYWORDS)


def _binds(code: Sequence[Token], at: int) -> bool:
    for token in code[at + 1 : at + 5]:
        if token.text == "[":
            return True
        if token.text not in {"const", "volatile", "&", "&&"}:
            return False
    return False


def _template_parameters(code: Sequence[Token]) -> frozenset[str]:
    return frozenset(
        code[at + 1].text
        for at in range(len(code) - 1)
        if code[at].text in {"class", "typename"} and code[at + 1].kind == "name"
    )


def _own_types(code: Sequence[Token]) -> frozenset[str]:
    return frozenset(
        code[at + 1].text
        for at in range(len(code) - 1)
        if code[at].text in {"struct", "using", "enum", "union"} and code[at + 1].kind == "name"
    )


def _text_at(code: Sequence[Token], at: int) -> str:
    return code[at].text if at < len(code) else ""
