"""Breaks each check of the judge in turn and shows which suite fails.

    python3 -m benchmarks.judge_mutation [--suite SUITE] [--only TEXT] [--jobs 2] [--markdown OUT]

Each mutation is one edit of one file (edits.py), made while a fresh process imports it: nothing on
disk changes. The suites (controls.py: comparisons, forged reports, the texts and problem files of
`benchmarks.attacks`, and a few whole judgements) run until something fails. A mutation that nothing
notices is a missing test. Exit code 1 if one survives, or if the unbroken judge fails.
"""

import argparse
import importlib.abc
import importlib.machinery
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType

import torch

from benchmarks.judge_mutation.edits import EDITS, SUITES, Edit, Suite

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(".pkforge") / "attacks"
UNBROKEN = Edit("nothing", "comparison", "problems/answers/compare.py", "", "")


@dataclass(frozen=True)
class Result:
    """What a mutation was caught by; None if it survived."""

    edit: Edit
    caught_by: str | None
    seconds: float


class _Edited(importlib.machinery.SourceFileLoader):
    """Compiles a file's text after the edit; no compiled file is read or written."""

    edit = UNBROKEN

    def get_code(self, fullname: str) -> CodeType:
        text = Path(self.path).read_text(encoding="utf-8")
        if text.count(self.edit.old) != 1:
            raise ValueError(f"{self.edit.file} does not have {self.edit.old!r} exactly once")
        changed = text.replace(self.edit.old, self.edit.new)
        return compile(changed, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the one module that is broken."""

    def __init__(self, edit: Edit) -> None:
        self._module = edit.file.removesuffix(".py").replace("/", ".")
        self._path = str(ROOT / edit.file)
        self._loader = type("Edited", (_Edited,), {"edit": edit})

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        loader = self._loader(fullname, self._path)
        return importlib.machinery.ModuleSpec(fullname, loader, origin=self._path)


def examine(edit: Edit, cache: Path, alone: bool = False) -> Result:
    """Breaks the judge in this process, which must not have imported it, and runs the suites."""
    loaded = [name for name in sys.modules if name.split(".")[0] in {"sandbox", "problems"}]
    assert not loaded, f"the judge is loaded already: {loaded[:3]}"
    started = time.monotonic()
    torch.set_num_threads(1)
    if edit.old:
        sys.meta_path.insert(0, _Finder(edit))
    from benchmarks.judge_mutation.controls import first_failure

    caught = first_failure(edit.suite, cache, alone=alone)
    return Result(edit, caught, time.monotonic() - started)


def _told(edit: Edit, cache: Path, alone: bool) -> tuple[str | None, float]:
    result = examine(edit, cache, alone)
    return result.caught_by, result.seconds


def examine_all(edits: Sequence[Edit], cache: Path, jobs: int, alone: bool = False) -> list[Result]:
    """Each in a process of its own; `alone`: by its own suite only."""
    context = multiprocessing.get_context("forkserver")  # this process may know the judge already
    context.set_forkserver_preload(["torch"])
    with context.Pool(jobs, maxtasksperchild=1) as pool:
        waiting = [pool.apply_async(_told, (edit, cache, alone)) for edit in edits]
        results = []
        for edit, answer in zip(edits, waiting, strict=True):
            results.append(Result(edit, *answer.get()))
            said = results[-1].caught_by or ("SURVIVED" if edit.old else "all holds")
            print(f"{edit.broken}: {said}", file=sys.stderr, flush=True)
        return results


def table(results: Sequence[Result]) -> str:
    """Markdown: each mutation and what noticed it first."""
    lines = ["| broken | in | noticed by |", "|---|---|---|"]
    for result in results:
        noticed = (result.caught_by or "**nothing**").replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {result.edit.broken} | `{result.edit.file}` | {noticed} |")
    survived = sum(result.caught_by is None for result in results)
    lines += ["", f"{len(results)} mutations, {survived} survived."]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Examines and prints; 1 if a mutation survives or the unbroken judge fails."""
    parser = argparse.ArgumentParser(prog="benchmarks.judge_mutation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--suite", choices=SUITES, help="only these mutations, by this suite")
    parser.add_argument("--only", help="mutations whose words contain this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args(argv)
    suite: Suite | None = options.suite
    chosen = [e for e in EDITS if suite in (None, e.suite) and (options.only or "") in e.broken]
    whole = replace(UNBROKEN, suite=suite or UNBROKEN.suite)
    unbroken, *results = examine_all(
        [whole, *chosen], options.cache, options.jobs, alone=suite is not None
    )
    print(table(results))
    if options.json:
        told = [{"broken": r.edit.broken, "file": r.edit.file, "caught_by": r.caught_by,
                 "seconds": round(r.seconds, 1)} for r in results]  # fmt: skip
        options.json.write_text(json.dumps(told, indent=1))
    if options.markdown:
        options.markdown.write_text(table(results) + "\n", encoding="utf-8")
    if unbroken.caught_by:
        print(f"the unbroken judge fails: {unbroken.caught_by}", file=sys.stderr)
    return 1 if unbroken.caught_by or any(r.caught_by is None for r in results) else 0


if __name__ == "__main__":
    # The processes of the pool find a function by its module's name, which is not "__main__" there.
    from benchmarks.judge_mutation.__main__ import main as known_by_name

    sys.exit(known_by_name())
