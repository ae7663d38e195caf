"""Candidates: the source files, language and knob values of one kernel that somebody proposes."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

Language = Literal["pk", "triton", "cuda"]

LANGUAGES: tuple[Language, ...] = get_args(Language)
MAIN_FILE: Mapping[Language, str] = {"pk": "kernel.cu", "triton": "kernel.py", "cuda": "kernel.cu"}
MAX_SOURCE_BYTES = 1 << 20
MAX_FILES = 32
MAX_KNOBS = 64
MAX_KNOB_VALUES = 256
MAX_DECLARATION = 8192
KNOB_RANGE = 1 << 31

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_KNOB_NAME = re.compile(r"[a-z][a-z0-9_]*")
_KNOB_CALL = re.compile(r"(?<![\w.>])knob\s*\(")
# Groups take their surrounding blanks: next to a \s* they would backtrack on hostile input.
_KNOB_ARGUMENTS = re.compile(
    r'\s*"(?P<name>[^"\\\n]*)"\s*,(?P<default>[^,{}()]*),\s*\{(?P<values>[^{}()]*)\}\s*\)'
)
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|[0-9]+)")
# Comments are blanked before knobs are looked for; strings are matched too, so that a "//" inside
# one is not taken for a comment.
_COMMENT_OR_STRING = re.compile(
    r"""(?P<comment>//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z))"""
    r"""|(?P<raw>R"(?P<tag>[^()\\\s]{0,16})\(.*?(?:\)(?P=tag)"|\Z))"""
    r"""|"(?:\\.|[^"\\\n])*+"?|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*+'?""",
    re.DOTALL,
)


class CandidateError(ValueError):
    """A candidate that cannot be accepted: what is wrong, where, and what to do about it."""

    def __init__(self, what: str, *, where: str, fix: str) -> None:
        super().__init__(f"{where}: {what}. {fix}")
        self.what = what
        self.where = where
        self.fix = fix


@dataclass(frozen=True)
class Knob:
    """A tuning parameter that a kernel declares: its name, default and every legal value."""

    name: str
    default: int
    values: tuple[int, ...]


@dataclass(frozen=True)
class Candidate:
    """Source files (relative name to text), their language and the chosen knob values.

    A "pk" candidate has exactly one file, `kernel.cu`. Knobs left out have their default value.
    """

    language: Language
    files: Mapping[str, str]
    knobs: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "files", dict(self.files))
        object.__setattr__(self, "knobs", dict(self.knobs))

    def __hash__(self) -> int:
        return hash(self.digest())

    @property
    def main_file(self) -> str:
        """Name of the file that is compiled or imported."""
        return MAIN_FILE[self.language]

    @property
    def source(self) -> str:
        """Text of the main file; CandidateError if there is none."""
        try:
            return self.files[self.main_file]
        except KeyError:
            raise CandidateError(
                f"there is no file {self.main_file!r}",
                where="files",
                fix=f"Name the main file of a {self.language!r} candidate {self.main_file!r}",
            ) from None

    def digest(self) -> str:
        """SHA-256 (hex) over language, files and knobs, as canonical JSON."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def source_bytes(self) -> bytes:
        """Language and files as canonical JSON: what knobs do not change."""
        document = {"language": self.language, "files": dict(self.files)}
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    def source_digest(self) -> str:
        """SHA-256 (hex) of `source_bytes`."""
        return hashlib.sha256(self.source_bytes()).hexdigest()

    def to_json(self) -> dict[str, object]:
        """A plain JSON object that `from_json` reads back."""
        return {"language": self.language, "files": dict(self.files), "knobs": dict(self.knobs)}

    @staticmethod
    def from_json(data: object) -> "Candidate":
        """Reads what `to_json` wrote, or a stranger's object; CandidateError on a wrong form."""
        if not isinstance(data, dict):
            raise _malformed("a candidate is a JSON object", "candidate")
        if unknown := sorted(set(map(str, data)) - {"language", "files", "knobs"}):
            raise _malformed(f"unknown fields: {', '.join(unknown)}", "candidate")
        language, files, knobs = data.get("language"), data.get("files"), data.get("knobs", {})
        if language not in LANGUAGES:
            raise _malformed(f"language must be one of {', '.join(LANGUAGES)}", "language")
        if not isinstance(files, dict) or not all(
            isinstance(name, str) and isinstance(text, str) for name, text in files.items()
        ):
            raise _malformed("files must map names to texts", "files")
        if not isinstance(knobs, dict) or not all(
            isinstance(name, str) and type(value) is int for name, value in knobs.items()
        ):
            raise _malformed("knobs must map names to integers", "knobs")
        return Candidate(cast(Language, language), files, knobs)


def declared_knobs(source: str) -> tuple[Knob, ...]:
    """The knobs a pk source declares with `knob("name", 4, {2, 3, 4})`, in order.

    Raises CandidateError, naming the line, for a declaration that is not of this form.
    """
    code = _COMMENT_OR_STRING.sub(_blank, source)
    knobs: dict[str, Knob] = {}
    line, counted = 1, 0
    for call in _KNOB_CALL.finditer(code):
        line, counted = line + code.count("\n", counted, call.start()), call.start()
        where = f"{MAIN_FILE['pk']}:{line}"
        knob = _parse_knob(code, call.end(), where)
        if knobs.setdefault(knob.name, knob) != knob:
            raise CandidateError(
                f"knob {knob.name!r} is declared twice, differently",
                where=where,
                fix="Give each knob one declaration",
            )
    if len(knobs) > MAX_KNOBS:
        raise CandidateError(
            f"{len(knobs)} knobs are declared",
            where=MAIN_FILE["pk"],
            fix=f"Declare at most {MAX_KNOBS}",
        )
    return tuple(knobs.values())


def resolved_knobs(candidate: Candidate) -> dict[str, int]:
    """Every knob of a candidate with the value it has: the chosen one, else the default.

    Languages other than "pk" declare no knobs in their source: theirs are the chosen ones.
    """
    if candidate.language != "pk":
        return dict(candidate.knobs)
    declared = declared_knobs(candidate.source)
    return {knob.name: candidate.knobs.get(knob.name, knob.default) for knob in declared}


def validate(candidate: Candidate) -> None:
    """Raises CandidateError (what, where, what to do) for a candidate that cannot be built."""
    if candidate.language not in LANGUAGES:
        raise _malformed(f"language must be one of {', '.join(LANGUAGES)}", "language")
    _validate_files(candidate)
    if candidate.language == "pk":
        _validate_knobs(candidate)


def _validate_files(candidate: Candidate) -> None:
    files = candidate.files
    source = candidate.source
    if candidate.language == "pk" and len(files) != 1:
        raise CandidateError(
            f"a pk candidate is one file, this one has {len(files)}",
            where="files",
            fix=f"Put everything into {candidate.main_file!r}",
        )
    if len(files) > MAX_FILES:
        raise CandidateError(
            f"{len(files)} files", where="files", fix=f"Send at most {MAX_FILES} files"
        )
    size = sum(len(text.encode(errors="surrogatepass")) for text in files.values())
    if size > MAX_SOURCE_BYTES:
        raise CandidateError(
            f"the source is {size} bytes",
            where="files",
            fix=f"Keep all files together under {MAX_SOURCE_BYTES} bytes",
        )
    for name, text in files.items():
        if len(name) > 200 or not _FILE_NAME.fullmatch(name):
            raise CandidateError(
                f"illegal file name {name[:200]!r}",
                where="files",
                fix="Use a relative name of letters, digits, '_', '-', '.' and '/'",
            )
        _validate_text(name, text)
    if not source.strip():
        raise CandidateError(
            "the file is empty", where=candidate.main_file, fix="Write the kernel into it"
        )


def _validate_text(name: str, text: str) -> None:
    if (position := text.find("\0")) >= 0:
        line = text.count("\n", 0, position) + 1
        raise CandidateError(
            "there is a NUL character", where=f"{name}:{line}", fix="Send plain UTF-8 text"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise CandidateError(
            "there is text that is not Unicode", where=f"{name}:{line}", fix="Send UTF-8 text"
        ) from None


def _validate_knobs(candidate: Candidate) -> None:
    declared = {knob.name: knob for knob in declared_knobs(candidate.source)}
    for name, value in candidate.knobs.items():
        if name not in declared:
            known = ", ".join(declared) or "none"
            raise CandidateError(
                f"the source declares no knob {name!r}",
                where="knobs",
                fix=f"Choose among the declared knobs ({known})",
            )
        if value not in declared[name].values:
            legal = ", ".join(map(str, declared[name].values))
            raise CandidateError(
                f"{value} is not a legal value of knob {name!r}",
                where="knobs",
                fix=f"Choose one of {legal}",
            )


def _parse_knob(code: str, position: int, where: str) -> Knob:
    arguments = _KNOB_ARGUMENTS.match(code, position, position + MAX_DECLARATION)
    default = _integer(arguments["default"]) if arguments else None
    texts = arguments["values"].split(",") if arguments else []
    if texts and not texts[-1].strip():
        texts.pop()
    values = tuple(value for value in map(_integer, texts) if value is not None)
    if arguments is None or default is None or not values or len(values) != len(texts):
        raise CandidateError(
            "this knob declaration cannot be read",
            where=where,
            fix='Write it as knob("stages", 4, {2, 3, 4}): a name, a default, the legal values, '
            "all of them literals",
        )
    name = arguments["name"]
    if problem := _knob_problem(name, default, values):
        raise CandidateError(f"knob {name!r}: {problem[0]}", where=where, fix=problem[1])
    return Knob(name, default, values)


def _knob_problem(name: str, default: int, values: tuple[int, ...]) -> tuple[str, str] | None:
    if len(name) > 64 or not _KNOB_NAME.fullmatch(name):
        return "illegal name", "Use lower-case letters, digits and '_', at most 64, letter first"
    if len(set(values)) != len(values):
        return "a legal value is listed twice", "List each value once"
    if len(values) > MAX_KNOB_VALUES:
        return f"{len(values)} legal values", f"List at most {MAX_KNOB_VALUES}"
    if default not in values:
        return f"the default {default} is not a legal value", "Add it to the values or change it"
    if any(not -KNOB_RANGE <= value < KNOB_RANGE for value in values):
        return "a value does not fit into 32 bits", "Use smaller values"
    return None


def _integer(text: str) -> int | None:
    """The value of a C++ integer literal of at most 16 digits, None for anything else."""
    digits = "".join(text.split()).replace("'", "").lower()
    if len(digits) > 16 or not _INTEGER.fullmatch(digits):
        return None
    sign, digits = (-1, digits[1:]) if digits[0] == "-" else (1, digits.lstrip("+"))
    if digits.startswith("0x"):
        return sign * int(digits, 16)
    if len(digits) > 1 and digits[0] == "0":
        return None if set(digits) & {"8", "9"} else sign * int(digits, 8)
    return sign * int(digits)


def _blank(match: re.Match[str]) -> str:
    if match["comment"] is None and match["raw"] is None:
        return match[0]
    return re.sub(r"[^\n]", " ", match[0])


def _malformed(what: str, where: str) -> CandidateError:
    return CandidateError(
        what, where=where, fix='Send {"language": "pk", "files": {"kernel.cu": "..."}, "knobs": {}}'
    )
