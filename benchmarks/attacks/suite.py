"""The candidates of the suite: small files with a header that says what each tries.

    // tries: the all-gather returns the own part W times
    // entry: 32                       its number in the catalogue (catalogue.py), or several
    // problem: allgather
    // status: wrong_output            the verdict that it must get
    // evidence: own input; y on       words of the verdict, separated by semicolons
    // base: allgather                 optional: the file then holds edits of that shipped kernel
    // knobs: depth=2, cols=64         optional
    // shapes: m1024n1024              optional: bench shapes to time, by default the first one
    // depth: full                     optional
    // unscanned: yes                  optional: judged as if the rules on its text had missed it

The code follows the header, or edits of the base, each

    <<<
    the text that is replaced
    ===
    the text in its place
    >>>

Files end in `.attack` or `.honest` and lie in a folder named after their language: pk, cuda,
triton, or problem for Python files that define a problem.
"""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from pk_runtime.candidate import MAIN_FILE, Candidate, Language
from pk_runtime.kernels import shipped, shipped_kernel, shipped_names, shipped_problems
from sandbox.verdict import Depth

FOLDER = Path(__file__).parent
RAW_EXAMPLES = FOLDER.parents[1] / "docs" / "examples"

Kind = Literal["attack", "honest"]
Sort = Literal["pk", "cuda", "triton", "problem"]
KINDS: tuple[Kind, ...] = ("attack", "honest")
SORTS: tuple[Sort, ...] = ("pk", "cuda", "triton", "problem")

_HEADER = re.compile(r"(?://|#) (\w+): (.*)")
_EDIT = re.compile(r"^<<<\n(.*?)\n===\n(.*?)\n?>>>$", re.DOTALL | re.MULTILINE)
_NEEDED = frozenset({"tries", "status"})
_KNOWN = _NEEDED | {"entry", "problem", "evidence", "base", "knobs", "shapes", "depth", "unscanned"}


@dataclass(frozen=True)
class Entry:
    """One candidate or problem file, and the verdict it must get.

    `status` is a verdict's; for problem files "refused" or "admitted", for candidates that only a
    GPU can run the status there. `entries` are numbers of the catalogue; honest ones have none.
    """

    name: str
    kind: Kind
    sort: Sort
    tries: str
    status: str
    source: str
    entries: tuple[str, ...] = ()
    problem: str = ""
    evidence: tuple[str, ...] = ()
    knobs: dict[str, int] = field(default_factory=dict)
    shapes: tuple[str, ...] = ()
    depth: Depth = "quick"
    unscanned: bool = False

    @property
    def text(self) -> tuple[str, ...] | None:
        """What the rules on its text must say, if anything; None if they must find nothing."""
        if self.status != "rejected" or self.shapes or "leaves out" in str(self.evidence):
            return None
        return () if self.unscanned else self.evidence

    @property
    def for_a_gpu(self) -> bool:
        """Whether nothing but a run on GPUs can tell: raw CUDA whose text is in order."""
        return self.sort == "cuda" and self.text is None

    @property
    def candidate(self) -> Candidate:
        """The candidate; not for problem files."""
        language = cast(Language, self.sort)
        return Candidate(language, {MAIN_FILE[language]: self.source}, self.knobs)


def entries(kind: Kind | None = None, sort: Sort | None = None) -> list[Entry]:
    """The suite in a fixed order; the shipped kernels are honest candidates of it.

    Raises ValueError, with the file, for one that is out of form.
    """
    found = [
        _read(path, each, of)
        for each in KINDS
        for of in SORTS
        for path in sorted((FOLDER / each / of).glob(f"*.{each}"))
    ]
    found += [*_shipped(), *_raw_examples()]
    return [e for e in found if kind in (None, e.kind) and sort in (None, e.sort)]


def _shipped() -> Iterator[Entry]:
    problems = {
        candidate.source: problem
        for problem in shipped_problems()
        for candidate in shipped(problem)
    }
    for name in shipped_names():
        source = shipped_kernel(name).source
        yield Entry(
            f"shipped {name}", "honest", "pk", "a kernel that ships", "correct", source,
            problem=problems[source],
        )  # fmt: skip


def _raw_examples() -> Iterator[Entry]:
    for path in sorted(RAW_EXAMPLES.glob("*.cu")):
        yield Entry(
            f"example {path.stem}", "honest", "cuda", "an example of docs/raw_cuda.md", "correct",
            path.read_text(encoding="utf-8"), problem=path.stem.removeprefix("raw_"),
        )  # fmt: skip


def _read(path: Path, kind: Kind, sort: Sort) -> Entry:
    lines = path.read_text(encoding="utf-8").splitlines()
    header: dict[str, str] = {}
    while lines and (match := _HEADER.fullmatch(lines[0])):
        header[match[1]] = match[2].strip()
        lines.pop(0)
    body = "\n".join(lines) + "\n"
    missing = (_NEEDED | ({"entry"} if kind == "attack" else set())) - set(header)
    if missing or set(header) - _KNOWN:
        wrong = ", ".join(sorted(missing | (set(header) - _KNOWN)))
        raise ValueError(f"{path}: the header lacks, or does not know, {wrong}")
    return Entry(
        name=path.stem.replace("_", " "),
        kind=kind,
        sort=sort,
        tries=header["tries"],
        status=header["status"],
        source=_edited(path, header["base"], body) if "base" in header else body,
        entries=tuple(header.get("entry", "").split()),
        problem=header.get("problem", ""),
        evidence=tuple(w.strip() for w in header.get("evidence", "").split(";") if w.strip()),
        knobs=_knobs(header.get("knobs", "")),
        shapes=tuple(header.get("shapes", "").split()),
        depth=cast(Depth, header.get("depth", "quick")),
        unscanned=header.get("unscanned") == "yes",
    )


def _edited(path: Path, base: str, body: str) -> str:
    """The base, a shipped kernel or a file beside this one, with the edits."""
    beside = path.parent / base
    source = beside.read_text(encoding="utf-8") if beside.is_file() else _base(base)
    edits = _EDIT.findall(body)
    for old, new in edits:
        if old not in source:
            raise ValueError(f"{path}: {base} no longer has {old!r}")
        source = source.replace(old, new, 1)
    return source


def _base(name: str) -> str:
    raw = RAW_EXAMPLES / f"{name}.cu"
    return raw.read_text(encoding="utf-8") if raw.is_file() else shipped_kernel(name).source


def _knobs(text: str) -> dict[str, int]:
    pairs = (part.split("=") for part in text.split(",") if part.strip())
    return {name.strip(): int(value) for name, value in pairs}


def with_status(entry: Entry, status: str) -> Entry:
    """The same candidate with another verdict asked of it."""
    return dataclasses.replace(entry, status=status)
