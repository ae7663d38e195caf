"""Candidates on disk: a source file, a bundle, a folder of candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from api.cli.exits import CliError, ExitCode
from api.cli.files import read_text
from api.reproduction import Reproduction, reproduction

if TYPE_CHECKING:
    from pk_runtime.bundle import Bundle
    from pk_runtime.candidate import Candidate, Language

_BY_SUFFIX: Mapping[str, Language] = {".cu": "pk", ".py": "triton"}


@dataclass(frozen=True)
class Given:
    """A candidate and, when it came as a bundle, how it was judged before."""

    candidate: Candidate
    told: Reproduction = field(default_factory=Reproduction)


def read_candidate(path: Path, knobs: Sequence[str] = (), language: str | None = None) -> Given:
    """Read a source file or a bundle, with `name=value` knobs on top; `CliError`."""
    from pk_runtime.candidate import (
        MAIN_FILE,
        MAX_SOURCE_BYTES,
        Candidate,
        CandidateError,
        validate,
    )

    chosen = parse_knobs(knobs)
    if path.suffix == ".zip":
        bundle = open_bundle(path)
        given = Given(bundle.candidate, reproduction(bundle.manifest))
    else:
        source = read_text(path, MAX_SOURCE_BYTES)
        written_in = language_of(path, language)
        given = Given(Candidate(written_in, {MAIN_FILE[written_in]: source}))
    before = given.candidate
    candidate = Candidate(before.language, before.files, {**before.knobs, **chosen})
    try:
        validate(candidate)
    except CandidateError as error:
        raise CliError(ExitCode.USAGE, f"{path}: {error}") from None
    return Given(candidate, given.told)


def language_of(path: Path, chosen: str | None) -> Language:
    """The language of a source file: the chosen one, else by its suffix; `CliError`."""
    from pk_runtime.candidate import LANGUAGES

    if chosen is not None:
        for language in LANGUAGES:
            if language == chosen:
                return language
        known = ", ".join(LANGUAGES)
        raise CliError(ExitCode.USAGE, f"--language {chosen!r}: use one of {known}")
    if path.suffix in _BY_SUFFIX:
        return _BY_SUFFIX[path.suffix]
    raise CliError(
        ExitCode.USAGE,
        f"{path} is neither a kernel source (.cu, .py) nor a bundle (.zip); "
        f"rename it or give --language",
    )


def parse_knobs(knobs: Sequence[str]) -> dict[str, int]:
    """`name=value` options as a mapping; `CliError` for another form."""
    chosen: dict[str, int] = {}
    for text in knobs:
        name, equals, value = text.partition("=")
        try:
            chosen[name.strip()] = int(value)
        except ValueError:
            equals = ""
        if not equals or not name.strip():
            raise CliError(ExitCode.USAGE, f"--knob {text!r}: write it as name=number")
    return chosen


def read_scripted(folder: Path) -> tuple[Candidate, ...]:
    """The candidates of a folder, in order; `CliError`."""
    from agent.policies.scripted import read_script
    from agent.spec import SpecError

    if not folder.is_dir():
        raise CliError(ExitCode.NOT_FOUND, f"there is no folder {folder}")
    try:
        return read_script(folder)
    except SpecError as error:
        raise CliError(ExitCode.USAGE, str(error)) from None


def open_bundle(path: Path) -> Bundle:
    """The bundle in a file; `CliError`."""
    from pk_runtime.bundle import BundleError, read_bundle

    if not path.is_file():
        raise CliError(ExitCode.NOT_FOUND, f"there is no file {path}")
    try:
        return read_bundle(path)
    except BundleError as error:
        raise CliError(ExitCode.USAGE, f"{path}: {error}") from None
