"""`pkforge eval --replay` and `--schedules`: what is repeated, and how often it is tried."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from api.cli.candidates import Given, open_bundle, read_candidate
from api.cli.exits import CliError, ExitCode
from api.cli.files import read_text
from api.reproduction import Reproduction

if TYPE_CHECKING:
    from pk_runtime.candidate import Candidate
    from sandbox.stages.plan import Replay, Schedules
    from sandbox.verdict import Verdict
    from store.settings import Settings

MOST_SCHEDULES = 100_000
_LARGEST_VERDICT_BYTES = 16 << 20


def read_verdict(path: Path) -> tuple[Verdict, Candidate | None]:
    """The verdict of a JSON file, or of a bundle together with its source; `CliError`."""
    from sandbox.verdict import Verdict, VerdictError

    source = None
    if path.suffix == ".zip":
        bundle = open_bundle(path)
        data, source = bundle.manifest["verdict"], bundle.candidate
    else:
        try:
            data = json.loads(read_text(path, _LARGEST_VERDICT_BYTES))
        except (ValueError, RecursionError):
            raise CliError(
                ExitCode.USAGE, f"{path} is not JSON; save one with: pkforge eval ... --json"
            ) from None
    if isinstance(data, dict) and isinstance(data.get("verdict"), dict):
        data = data["verdict"]  # of an evaluation, or of a repetition
    try:
        return Verdict.from_json(data if isinstance(data, dict) else {}), source
    except VerdictError as error:
        raise CliError(ExitCode.USAGE, f"{path} is not a verdict: {error}") from None


def repeated(path: Path, file: Path | None, chosen: Settings) -> tuple[Given, Verdict]:
    """What repeats the verdict in `path`: its candidate and how to judge it; `CliError`.

    The source comes from `file`, else from the bundle, else from this machine's artifacts.
    """
    from sandbox.replay import ReplayError, again

    verdict, source = read_verdict(path)
    if file is not None:
        language = None if file.suffix == ".zip" else verdict.language
        source = read_candidate(file, (), language).candidate
    if source is None:
        source = _kept(verdict, chosen)
    try:
        candidate = again(verdict, source)
    except ReplayError as error:
        raise CliError(ExitCode.USAGE, f"{path}: {error}") from None
    shapes = verdict.shapes or tuple(timing.shape for timing in verdict.timings)
    told = Reproduction(verdict.problem, verdict.target, shapes or None, verdict.seed)
    return Given(candidate, told), verdict


def _kept(verdict: Verdict, chosen: Settings) -> Candidate:
    from store.artifacts import Artifacts
    from store.candidates import load_source
    from store.errors import ArtifactError

    try:
        return load_source(Artifacts(chosen.artifacts), verdict.source, verdict.knobs)
    except ArtifactError:
        raise CliError(
            ExitCode.USAGE,
            "give the kernel's source file too: a verdict holds only its hash, and this machine "
            "has not kept it",
        ) from None


def a_seed(text: str) -> int | None:
    """The seed, if that is what was given."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def a_run(text: str | None, seed: int | None) -> Replay | None:
    """The run of a check that a report names, if that is what was given; `CliError`."""
    from sandbox.stages.plan import Replay

    if text is None or "schedule=" not in text:
        return None
    if seed is None:
        raise CliError(ExitCode.USAGE, "a run is repeated with its verdict's seed: give --seed too")
    try:
        return Replay.parse(text)
    except ValueError as error:
        raise CliError(ExitCode.USAGE, str(error)) from None


def number_of_schedules(text: str | None) -> Schedules | None:
    """What --schedules asks for; `CliError`."""
    if text is None or text == "exhaustive":
        return "exhaustive" if text else None
    if text.isascii() and text.isdigit() and len(text) <= 6 and 0 < int(text) <= MOST_SCHEDULES:
        return int(text)
    raise CliError(
        ExitCode.USAGE, f"--schedules {text!r}: give 1 to {MOST_SCHEDULES}, or exhaustive"
    )
