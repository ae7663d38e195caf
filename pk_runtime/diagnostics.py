"""Compiler output as structured records that a person (or a model) can act on.

A candidate's author knows only the candidate's files. So an error inside a header is moved to the
line of the candidate that led to it, with the place in the header kept as a note; template noise
and snippets are dropped; and paths of this machine never appear.
"""

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

MAX_ERRORS = 10
MAX_NOTES = 4
MAX_MESSAGE = 500
# Hostile source can make a compiler print anything: what is looked at is bounded.
MAX_LINES, MAX_LINE = 20_000, 4_000

_GCC_HEADER = re.compile(r"(?P<file>[^:\n]+): (?P<text>(?:In|At) .*):$")
_GCC_LOCATED = re.compile(r"(?P<file>[^:\n]+):(?P<line>\d+):(?:(?P<column>\d+):)?(?P<rest>.*)$")
_GCC_SEVERITY = re.compile(
    r" (?P<severity>fatal error|error|warning|note|sorry, unimplemented|internal compiler error): "
    r"(?P<message>.*)$"
)
_GCC_FRAME = re.compile(r" {2,}(?:recursively )?(?:required|in '?constexpr'? expansion)\b")
_GCC_INCLUDED = re.compile(r"(?:In file included| {17}) ?from (?P<file>[^:\n]+):(?P<line>\d+)")
_DRIVER = re.compile(
    r"(?:g\+\+|c\+\+|cc1plus|gcc|nvcc|nvlink)(?: (?:fatal|error))? *: (?P<rest>.*)$"
)
_UNDEFINED = re.compile(r"undefined reference to [`'](?P<symbol>[^']+)'")
_DUPLICATE = re.compile(r"multiple definition of [`'](?P<symbol>[^']+)'")
_EDG = re.compile(
    r"(?P<file>[^()\n]+)\((?P<line>\d+)\): "
    r"(?P<severity>error|catastrophic error|internal error|warning|note|remark)"
    r"(?: #[\w-]+)?: (?P<message>.*)$"
)
_EDG_END = re.compile(r"At end of source: error(?: #[\w-]+)?: (?P<message>.*)$")
_EDG_FRAME = re.compile(
    r"(?P<text>instantiation of .*?) at line (?P<line>\d+)(?: of (?P<file>\S+))?"
)
_EDG_DETAIL = re.compile(r" {8,}(?P<text>(?:argument|object|operand) types? (?:is|are): .*)$")
_PTXAS = re.compile(r"ptxas (?P<where>.*?)(?:error|fatal) *: (?P<message>.*)$")
# What nvcc writes itself, beside the source, between its passes.
_NVCC_PASS = re.compile(r"(?:\./)*tmpxft_[0-9a-f]+_[0-9a-f]+-\d+_[\w.-]+\.c")
_HEADER_TRACE = re.compile(r"[.!x]+ (?P<path>\S.*)$")
_ERRORS = frozenset(
    {"error", "fatal error", "sorry, unimplemented", "internal compiler error"}
    | {"catastrophic error", "internal error"}
)
_ABSOLUTE_PATH = re.compile(r"(?<![\w.)\]>])(?:\.\.?)?/(?:[\w.+@~-]+/)*([\w.+@~-]+)")


@dataclass(frozen=True)
class Diagnostic:
    """One message about one place. `line` and `column` are 0 where the compiler names none.

    `file` is a file of the candidate, or a header as it is included (`pk/tile.h`, `vector`).
    `severity` is "error" or "note"; a note belongs to the error before it.
    """

    file: str
    line: int
    column: int
    severity: str
    message: str

    def __str__(self) -> str:
        place = self.file
        if self.line:
            place += f":{self.line}" + (f":{self.column}" if self.column else "")
        return f"{place}: {self.severity}: {self.message}"


@dataclass(frozen=True)
class SourceTree:
    """What the compiler was given: the candidate's files and the folders headers may come from."""

    files: dict[str, str]
    main: str
    headers: tuple[Path, ...]

    def owns(self, file: str) -> bool:
        """Whether a file named in a message is one of the candidate's."""
        return file.removeprefix("./") in self.files

    def shown(self, file: str) -> str:
        """The name of a file as the candidate's author knows it."""
        if self.owns(file):
            return file.removeprefix("./")
        path = Path(_normal(file))
        for folder in self.headers:
            if path.is_relative_to(folder):
                return str(path.relative_to(folder))
        return path.name

    def clean(self, message: str) -> str:
        """A message without template noise, without paths of this machine, of bounded length."""
        for folder in self.headers:
            message = message.replace(f"{folder}/", "")
        message = _ABSOLUTE_PATH.sub(r"\1", message)
        message = message.replace("std::__cxx11::", "std::")
        message = message.replace("basic_string<char>", "string")
        message = re.sub(r" \[with [^\[\]]{120,}\]", "", message)
        message = "".join(c for c in " ".join(message.split()) if c.isprintable())
        return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 3] + "..."

    def line_of(self, symbol: str) -> int:
        """First line of the main file that names a symbol, 0 if none does."""
        name = re.sub(r"[(<].*", "", symbol).split("::")[-1].strip()
        if not name or self.main not in self.files:
            return 0
        for number, text in enumerate(self.files[self.main].splitlines(), start=1):
            if re.search(rf"\b{re.escape(name)}\b", text):
                return number
        return 0


@dataclass
class _Place:
    file: str
    line: int
    column: int = 0


@dataclass
class _Finding:
    place: _Place
    message: str
    frames: list[_Place]
    included: list[_Place] = field(default_factory=list)
    notes: list[tuple[_Place, str]] = field(default_factory=list)


def parse(log: str, tree: SourceTree) -> tuple[Diagnostic, ...]:
    """The errors of a g++ or nvcc run, in order, each followed by its notes. Warnings are left out.

    Empty if the text holds no error that is understood.
    """
    parser = _Parser(tree)
    for line in itertools.islice(log.split("\n"), MAX_LINES):
        parser.feed(line[:MAX_LINE])
    diagnostics: list[Diagnostic] = []
    seen: set[str] = set()
    for finding in parser.findings:
        records = list(_records(finding, tree))
        if str(records[0]) not in seen and len(seen) < MAX_ERRORS:
            seen.add(str(records[0]))
            diagnostics += records
    return tuple(diagnostics)


def foreign_headers(log: str, tree: SourceTree) -> tuple[str, ...]:
    """Headers that `-H` says were opened and that are neither the candidate's nor under `headers`.

    Text of such a file must not reach anybody, so the whole log is then of no use.
    """
    foreign = []
    for line in log.splitlines():
        if (trace := _HEADER_TRACE.fullmatch(line)) is None or tree.owns(trace["path"]):
            continue
        if _NVCC_PASS.fullmatch(trace["path"]):
            continue
        path = Path(_normal(trace["path"]))
        if not any(path.is_relative_to(folder) for folder in tree.headers):
            foreign.append(trace["path"])
    return tuple(foreign)


def render(diagnostics: Iterable[Diagnostic]) -> str:
    """Diagnostics as text, one a line, notes indented."""
    return "\n".join(("  " if d.severity == "note" else "") + str(d) for d in diagnostics)


@dataclass
class _Parser:
    tree: SourceTree
    findings: list[_Finding] = field(default_factory=list)
    context: str = ""
    frames: list[_Place] = field(default_factory=list)
    included: list[_Place] = field(default_factory=list)
    quiet: bool = True

    def feed(self, line: str) -> None:
        """Takes one line of compiler output; what is not understood is ignored."""
        for step in (self.include, self.header, self.edg, self.linker, self.located, self.other):
            if step(line):
                return

    def include(self, line: str) -> bool:
        match = _GCC_INCLUDED.match(line)
        if match is None:
            return False
        if line.startswith("In"):
            self.included, self.frames, self.context = [], [], ""
        self.included.append(_Place(match["file"], int(match["line"])))
        return True

    def header(self, line: str) -> bool:
        match = _GCC_HEADER.match(line)
        if match is None:
            return False
        self.context, self.frames = match["text"], []
        return True

    def located(self, line: str) -> bool:
        match = _GCC_LOCATED.match(line)
        if match is None:
            return False
        place = _Place(match["file"], int(match["line"]), int(match["column"] or 0))
        if _GCC_FRAME.match(match["rest"]):
            self.frames.append(place)
        elif message := _GCC_SEVERITY.match(match["rest"]):
            self.message(place, message["severity"], message["message"])
        return True

    def edg(self, line: str) -> bool:
        if match := _EDG.match(line):
            place = _Place(match["file"], int(match["line"]))
            self.context, self.frames, self.included = "", [], []
            self.message(place, match["severity"], match["message"])
        elif match := _EDG_END.match(line):
            self.message(_Place(self.tree.main, self.last_line()), "error", match["message"])
        elif self.findings and (match := _EDG_FRAME.search(line)):
            finding = self.findings[-1]
            place = _Place((match["file"] or finding.place.file).strip('"'), int(match["line"]))
            finding.frames.append(place)
            finding.notes.append((finding.place, f"in {match['text']}"))
        elif self.findings and (match := _EDG_DETAIL.match(line)):
            self.findings[-1].message += f"; {match['text']}"
        else:
            return False
        return True

    def message(self, place: _Place, severity: str, message: str) -> None:
        substitution = self.context.startswith("In substitution") and bool(self.findings)
        if severity in _ERRORS and not substitution:
            finding = _Finding(place, message, self.frames, self.included)
            if self.context.startswith("In instantiation"):
                finding.notes.append((place, self.context.replace("In ", "in ", 1)))
            self.findings.append(finding)
            self.frames, self.quiet = [], False
        elif severity == "note" and not self.quiet:
            finding = self.findings[-1]
            finding.notes.append((place, message))
            if message.startswith("in expansion of macro"):
                finding.frames.append(place)
        elif severity in ("warning", "remark"):
            self.quiet = True

    def linker(self, line: str) -> bool:
        if match := _UNDEFINED.search(line):
            symbol = match["symbol"]
            what = f"{symbol!r} is used but not defined"
            if symbol in ("pk_program", "main"):
                what = "the file makes no kernel known: end it with PK_KERNEL(name)"
        elif match := _DUPLICATE.search(line):
            symbol = match["symbol"]
            what = f"{symbol!r} is defined twice, here and in pk_runtime or another file"
        else:
            return False
        line_number = self.tree.line_of(symbol)
        self.findings.append(_Finding(_Place(self.tree.main, line_number), what, []))
        return True

    def other(self, line: str) -> bool:
        if match := _PTXAS.match(line):
            generated = re.search(r"line (\d+);? *$", match["where"])
            where = f" (line {generated[1]} of the generated PTX)" if generated else ""
            if "aborted due to errors" not in match["message"]:
                message = f"ptxas: {match['message']}{where}"
                self.findings.append(_Finding(_Place(self.tree.main, 0), message, []))
        elif (match := _DRIVER.match(line)) and re.search("error|fatal|memory|Killed", line):
            text = re.sub(r"^(?:fatal )?error: ", "", match["rest"])
            self.findings.append(_Finding(_Place(self.tree.main, 0), text, []))
        return True

    def last_line(self) -> int:
        return len(self.tree.files.get(self.tree.main, "").splitlines())


def _records(finding: _Finding, tree: SourceTree) -> Iterable[Diagnostic]:
    place, notes = finding.place, finding.notes
    led_here = [frame for frame in finding.frames if tree.owns(frame.file)]
    led_to_header = led_here or [at for at in finding.included if tree.owns(at.file)]
    if not tree.owns(place.file) and led_to_header:
        notes = [(place, "reported here"), *notes]
        place = led_to_header[0]
    elif led_here and led_here[-1] != place:
        notes = [(led_here[-1], "required from here"), *notes]
    yield Diagnostic(
        tree.shown(place.file), place.line, place.column, "error", tree.clean(finding.message)
    )
    records = [
        Diagnostic(tree.shown(at.file), at.line, at.column, "note", tree.clean(text))
        for at, text in _worth_keeping(notes, tree)
    ]
    yield from list(dict.fromkeys(records))[:MAX_NOTES]


def _worth_keeping(
    notes: Iterable[tuple[_Place, str]], tree: SourceTree
) -> Iterable[tuple[_Place, str]]:
    """Leaves out notes about the standard library's insides: they do not help the author."""
    own_headers = str(tree.headers[0])
    dropped = False
    for place, text in notes:
        # g++ indents what belongs to the note before.
        if text.startswith(" ") and dropped:
            continue
        dropped = not (tree.owns(place.file) or _normal(place.file).startswith(own_headers))
        if not dropped and not text.strip().startswith("template argument deduction"):
            yield place, text


def _normal(path: str) -> str:
    """An absolute path without "..", without following links; a relative one likewise."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and parts and parts[-1] not in ("", ".."):
            parts.pop()
        elif part != "." and (part or not parts):
            parts.append(part)
    return "/".join(parts)
