"""`pkforge eval`: judge one candidate here and now, without the service."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.files import LARGEST_PROBLEM_BYTES
from api.cli.options import Json

if TYPE_CHECKING:
    from api.cli.candidates import Given
    from sandbox.isolation import IsolatedExecutor
    from sandbox.problem_host import ProblemSource
    from sandbox.stages.plan import Replay, Schedules
    from sandbox.verdict import Verdict
    from store.settings import Settings


Tried = Annotated[
    str | None,
    typer.Option(help="How many schedules to draw per shape, or 'exhaustive'; on sim: targets."),
]
Repeated = Annotated[
    str | None,
    typer.Option(
        help="Repeat a verdict (its JSON, or a bundle) and say whether it agrees; or a seed; "
        "or, with --seed, the one run that a report names (shape=... schedule=...)."
    ),
]
Traced = Annotated[
    Path | None,
    typer.Option(help="Write timelines of the timed shapes here, for ui.perfetto.dev."),
]


def evaluate(
    file: Annotated[
        Path | None, typer.Argument(help="Kernel source (.cu, .py) or bundle (.zip).")
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option(help="Slug or number, or a problem file (.py). A bundle names its own."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Such as sim:h200x4. A bundle names its own.")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Bench shape to time; may be repeated. Default: all.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of inputs and schedules; default: secret.", min=0)
    ] = None,
    knob: Annotated[
        list[str] | None, typer.Option("--knob", "-k", help="name=number; may be repeated.")
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="pk, triton or cuda; default: .cu is pk, .py is triton.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Check one small shape only, as a search does.")
    ] = False,
    schedules: Tried = None,
    replay: Repeated = None,
    trace: Traced = None,
    no_isolation: Annotated[
        bool, typer.Option("--no-isolation", help="Run without a sandbox; the verdict says so.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Build, check and time one kernel; prints a verdict that explains itself.

    Exit: 0 correct, 1 judged and not correct, 2 usage, 3 not found, 5 the judge could not work.
    With --replay VERDICT: 0 the repetition agrees, 1 it does not.
    """
    from api.cli.options import settings
    from api.cli.replay import number_of_schedules

    chosen = settings(**({"allow_no_isolation": True} if no_isolation else {}))
    told = target or shape or knob or seed is not None or quick
    asked = _asked(chosen, file, replay, seed, knob or (), language, quick, told=bool(told))
    given = asked.given
    executor = _executor(chosen)
    verdict = _judge(
        chosen,
        executor,
        given,
        problem=_source(_named(problem, given.told.problem, "problem"), chosen),
        target=_named(target, given.told.target, "target"),
        shapes=tuple(shape) if shape else given.told.shapes,
        seed=given.told.seed if asked.seed is None else asked.seed,
        quick=asked.quick,
        trace=_writable(trace),
        schedules=number_of_schedules(schedules),
        replay=asked.run,
        as_json=as_json,
    )
    raise typer.Exit(_answer(verdict, asked.first, as_json))


@dataclass(frozen=True)
class _Asked:
    """What is to be judged, and what of it is repeated: a verdict, or one run of a check."""

    given: Given
    first: Verdict | None
    run: Replay | None
    seed: int | None
    quick: bool


def _asked(
    chosen: Settings,
    file: Path | None,
    replay: str | None,
    seed: int | None,
    knobs: Sequence[str],
    language: str | None,
    quick: bool,
    *,
    told: bool,
) -> _Asked:
    """What the options ask for; `told` says whether some describe how to judge."""
    from api.cli.candidates import read_candidate
    from api.cli.exits import CliError, ExitCode
    from api.cli.replay import a_run, a_seed, repeated

    run = a_run(replay, seed)
    drawn = None if replay is None else a_seed(replay)
    if replay is not None and run is None and drawn is None:
        if told:
            why = "--target, --shape, --knob, --seed and --quick come from the verdict"
            raise CliError(ExitCode.USAGE, f"--replay goes without other choices: {why}")
        given, first = repeated(Path(replay), file, chosen)
        return _Asked(given, first, None, None, first.depth == "quick")
    if file is None:
        raise CliError(ExitCode.USAGE, "give a kernel's FILE, or --replay VERDICT")
    if drawn is not None and seed is not None:
        raise CliError(ExitCode.USAGE, "--replay with a seed and --seed say the same: give one")
    given = read_candidate(file, knobs, language)
    return _Asked(given, None, run, seed if drawn is None else drawn, quick)


def _answer(verdict: Verdict, first: Verdict | None, as_json: bool) -> int:
    """Print the verdict, and what it says of the one it repeats; the exit code."""
    from api.cli.console import print_json, safe, stdout
    from api.cli.exits import ExitCode
    from api.cli.verdict_view import print_verdict
    from sandbox.replay import compare

    agreement = None if first is None else compare(first, verdict)
    data = verdict.to_json()
    if as_json:
        print_json(data if agreement is None else {"verdict": data, "replay": agreement.to_json()})
    else:
        print_verdict(verdict)
        if agreement is not None:
            stdout().print(f"\n{safe(agreement.summary)}", markup=False)
    if verdict.status == "infra_error":
        return ExitCode.SERVICE
    good = verdict.correct if agreement is None else agreement.agrees
    return ExitCode.OK if good else ExitCode.NOT_CORRECT


def _named(option: str | None, told: str | None, name: str) -> str:
    """The option, else what the bundle says."""
    from api.cli.exits import CliError, ExitCode

    value = option or told
    if value is None:
        raise CliError(ExitCode.USAGE, f"give --{name}: only a bundle names its own")
    return value


def _writable(path: Path | None) -> Path | None:
    """The path, if a file can be written there; asked before minutes are spent."""
    from api.cli.exits import CliError, ExitCode

    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise CliError(ExitCode.USAGE, f"--trace: {path} cannot be written; name a new file")
    return path


def _executor(chosen: Settings) -> IsolatedExecutor:
    from api.cli.exits import CliError, ExitCode
    from pk_runtime.execution import ExecutionError
    from sandbox.isolation import IsolationUnavailable, choose

    try:
        return choose(
            allow_none=chosen.allow_no_isolation,
            choice=chosen.isolation,
            docker_host=chosen.docker_host,
        )
    except (IsolationUnavailable, ExecutionError) as error:
        raise CliError(ExitCode.SERVICE, f"the candidate was not run: {error}") from None


def _source(name: str, chosen: Settings) -> ProblemSource:
    """The problem by slug or number, from a file, or as added to this machine's service."""
    from api.cli.exits import CliError, ExitCode
    from api.cli.files import read_text
    from problems.errors import UnknownProblem
    from problems.registry import get
    from sandbox.problem_host import CustomProblem

    if name.endswith(".py"):
        return CustomProblem(read_text(Path(name), LARGEST_PROBLEM_BYTES))
    try:
        return get(name)
    except UnknownProblem as error:
        text = _added(name, chosen)
        if text is None:
            raise CliError(ExitCode.NOT_FOUND, str(error)) from None
        return CustomProblem(text)


def _added(slug: str, chosen: Settings) -> str | None:
    """The file of a problem that a user added to this machine's service, if there is one."""
    from store import open_store

    if not (chosen.home / "pkforge.db").exists():
        return None
    with open_store(chosen) as store:
        if not store.database.at_head():
            return None
        with store.database.read() as tx:
            row = tx.problems.find(slug)
        return None if row is None else store.artifacts.get(row.source_sha256).decode()


@contextmanager
def _stages(as_json: bool) -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """Show the stages on stderr: a spinner on a terminal, else a line each; none with JSON."""
    from api.cli.console import note, safe, stderr

    console = stderr()
    if as_json:
        yield lambda stage, detail: None
    elif console.is_terminal:
        with console.status("starting") as status:
            yield lambda stage, detail: status.update(safe(_stage_line(stage, detail)))
    else:
        yield lambda stage, detail: note(safe(_stage_line(stage, detail)))


def _stage_line(stage: str, detail: dict[str, Any]) -> str:
    return " ".join([stage, *(f"{name}={value}" for name, value in detail.items())])


def _judge(
    chosen: Settings,
    executor: IsolatedExecutor,
    given: Given,
    *,
    problem: ProblemSource,
    target: str,
    shapes: tuple[str, ...] | None,
    seed: int | None,
    quick: bool,
    trace: Path | None,
    schedules: Schedules | None,
    replay: Replay | None,
    as_json: bool,
) -> Verdict:
    from api.cli.exits import CliError, ExitCode
    from pk_runtime.target import TargetError, parse_target
    from problems.errors import ProblemError, UnknownShape
    from sandbox.judge import Judge, TargetNotAvailable

    try:
        machine = parse_target(target)
    except TargetError as error:
        raise CliError(ExitCode.NOT_FOUND, str(error)) from None
    asked = {"--trace": trace, "--schedules": schedules, "--replay of a run": replay}
    for option in (name for name, value in asked.items() if value is not None):
        if machine.backend != "sim":
            raise CliError(ExitCode.USAGE, f"{option} needs a sim: target, and {machine} is none")
    chosen.prepare()
    try:
        with (
            Judge(cache=chosen.build_cache, executor=executor) as judge,
            _stages(as_json) as progress,
        ):
            return judge.evaluate(
                given.candidate,
                problem,
                machine,
                shapes=shapes,
                seed=seed,
                depth="quick" if quick else "full",
                progress=progress,
                trace=trace,
                schedules=schedules,
                replay=replay,
            )
    except UnknownShape as error:
        raise CliError(ExitCode.NOT_FOUND, str(error)) from None
    except TargetNotAvailable as error:
        raise CliError(ExitCode.SERVICE, str(error)) from None
    except ProblemError as error:
        raise CliError(ExitCode.USAGE, f"the problem cannot be used: {error}") from None
