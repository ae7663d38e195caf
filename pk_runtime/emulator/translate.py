"""CUDA C++ as g++ can compile it: the few constructs that are no C++ are rewritten in place.

Inline PTX becomes a call that executes its text, so that what the emulator checks is what nvcc
would have compiled. Lines stay where they are: every report names the line of the original.
"""

import re
from pathlib import Path

_ASM = re.compile(r"\basm\s*(?:volatile\s*)?\(")
_CONSTRAINT = re.compile(r'"([=+]?)([rlhfn])"\s*\(')
_CALLED = {"=": "written", "+": "changed", "": "given"}
_SHARED = re.compile(r"extern __shared__ .*?(\w+)\[\];")
_PARAMETER = re.compile(r"const __grid_constant__ ([\w:]+) (\w+)")


class TranslationError(ValueError):
    """A source with inline assembly that has no end, or shared memory in a form not known."""


def translate(source: str) -> str:
    """The source with as many lines; TranslationError if it cannot be read."""
    source = _SHARED.sub(_dynamic_shared, source)
    if re.search(r"\b__shared__\b", source):
        raise TranslationError("only `extern __shared__ T name[];` on a line of its own is known")
    source = _PARAMETER.sub(r"const \1& \2", source)
    done, at = [], 0
    while found := _ASM.search(source, at):
        end = _end(source, found.end())
        done += [source[at : found.start()], _call(source[found.end() : end - 1])]
        at = end
    text = "".join([*done, source[at:]])
    return _CONSTRAINT.sub(lambda m: f"::pk::emulated::{_CALLED[m[1]]}('{m[2]}', ", text)


def translate_tree(source: Path, target: Path) -> None:
    """Writes a translated copy of every file below `source`."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(translate(path.read_text(encoding="utf-8")), encoding="utf-8")


def _dynamic_shared(found: re.Match[str]) -> str:
    return f"\n#define {found[1]} (::pk::emulated::shared_memory())\n".strip("\n")


def _call(inside: str) -> str:
    text, *parts = _split(inside)
    operands = ", ".join(part for part in parts[:2] if part.strip())
    program = f"static ::pk::emulated::program pk_program{{{text}}};"
    return f"({{ {program} pk_program.run({{{operands}}}); }})"


def _split(inside: str) -> list[str]:
    """Template, outputs, inputs, clobbers: what stands between the colons of the statement."""
    parts, first, at, depth = [], 0, 0, 0
    while at < len(inside):
        if inside[at] == '"':
            at = _string_end(inside, at)
            continue
        depth += (inside[at] in "([{") - (inside[at] in ")]}")
        if inside[at] == ":" and depth == 0:
            parts.append(inside[first:at])
            first = at + 1
        at += 1
    return [*parts, inside[first:]]


def _end(source: str, at: int) -> int:
    """Behind the bracket that closes what is open at `at`."""
    depth = 1
    while at < len(source):
        if source[at] == '"':
            at = _string_end(source, at)
            continue
        depth += (source[at] == "(") - (source[at] == ")")
        at += 1
        if depth == 0:
            return at
    raise TranslationError("an asm statement has no end")


def _string_end(source: str, at: int) -> int:
    at += 1
    while at < len(source) and source[at] != '"':
        at += 2 if source[at] == "\\" else 1
    return at + 1
