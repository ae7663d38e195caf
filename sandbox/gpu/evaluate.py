"""Judge one kernel on this machine's GPUs, with nothing but Python, torch and nvcc:

    python3 -m sandbox.gpu.evaluate kernel.cu --problem gemm_reducescatter --target cuda:h200x4

prints the verdict as `pkforge eval` does, by the same judge. Exit: 0 correct, 1 judged and not
correct, 2 wrong arguments, 5 the judge could not work.
"""

import argparse
import json
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast, get_args

from pk_runtime.candidate import MAIN_FILE, Candidate, Language
from pk_runtime.execution import ExecutionError
from pk_runtime.target import TargetError, parse_target
from problems.errors import ProblemError
from problems.registry import get
from sandbox.explain import explain
from sandbox.isolation import IsolationUnavailable, choose
from sandbox.judge import Judge, TargetNotAvailable
from sandbox.verdict import Verdict

CORRECT, NOT_CORRECT, USAGE, NO_VERDICT = 0, 1, 2, 5
_CACHE = Path(".pkforge/gpu")


def main(arguments: Sequence[str] | None = None) -> int:
    """Judges as often as asked and prints each verdict; the exit code is that of the last."""
    chosen = _parser().parse_args(arguments)
    try:
        candidate = _candidate(chosen.file, chosen.language, chosen.knob)
        target, problem = parse_target(chosen.target), get(chosen.problem)
        executor = choose(allow_none=chosen.no_isolation)
    except (OSError, UnicodeDecodeError, TargetError, ProblemError, ValueError) as error:
        _say(f"error: {error}")
        return USAGE
    except (IsolationUnavailable, ExecutionError) as error:
        _say(f"error: the candidate was not run: {error}")
        return NO_VERDICT
    verdicts: list[Verdict] = []
    seconds: list[float] = []
    with Judge(cache=chosen.cache, executor=executor) as judge:
        for number in range(chosen.repeat):
            started = time.monotonic()
            try:
                verdict = judge.evaluate(
                    _anew(candidate) if chosen.fresh else candidate,
                    problem,
                    target,
                    shapes=chosen.shape,
                    seed=chosen.seed,
                    depth="quick" if chosen.quick else "full",
                    progress=_progress(started),
                )
            except (TargetNotAvailable, ProblemError) as error:
                _say(f"error: {error}")
                return NO_VERDICT if isinstance(error, TargetNotAvailable) else USAGE
            verdicts.append(verdict)
            seconds.append(time.monotonic() - started)
            run = f" (run {number + 1} of {chosen.repeat})" if chosen.repeat > 1 else ""
            lines = [*explain(verdict), f"  {seconds[-1]:.1f} s{run}"]
            sys.stdout.write("\n".join(lines) + "\n\n")
            sys.stdout.flush()
            if chosen.json is not None:
                text = json.dumps([v.to_json() for v in verdicts], indent=1)
                chosen.json.write_text(text + "\n", encoding="utf-8")
    if len(seconds) > 1:
        warm = statistics.median(seconds[1:])
        sys.stdout.write(f"warm: {warm:.1f} s a candidate, {3600 / warm:.0f} candidates an hour\n")
    last = verdicts[-1]
    if last.status == "infra_error":
        return NO_VERDICT
    return CORRECT if last.correct else NOT_CORRECT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m sandbox.gpu.evaluate", description="Judge one kernel on GPUs."
    )
    parser.add_argument("file", type=Path, help="kernel source (.cu, .py)")
    parser.add_argument("--problem", required=True, help="slug or number of the catalogue")
    parser.add_argument("--target", default="cuda:h200x4", help="such as cuda:h200x4")
    parser.add_argument("--shape", action="append", help="bench shape to time; may be repeated")
    parser.add_argument("--seed", type=int, help="seed of inputs; default: secret")
    parser.add_argument("-k", "--knob", action="append", default=[], help="name=number")
    parser.add_argument("--language", choices=get_args(Language), help="default: .cu is pk")
    parser.add_argument("--quick", action="store_true", help="check one small shape only")
    parser.add_argument("--no-isolation", action="store_true", help="run without a sandbox")
    parser.add_argument("--json", type=Path, help="file for the verdicts, a list")
    parser.add_argument("--repeat", type=_positive, default=1, help="judge so often, kept warm")
    parser.add_argument("--fresh", action="store_true", help="compile it anew every time")
    parser.add_argument("--cache", type=Path, default=_CACHE, help=f"default: {_CACHE}")
    return parser


def _candidate(file: Path, language: str | None, knobs: Sequence[str]) -> Candidate:
    """The candidate of a source file; ValueError or OSError if it cannot be one."""
    known = {".cu": "pk", ".py": "triton"}
    kind = language or known.get(file.suffix)
    if kind is None:
        raise ValueError(f"{file}: the name ends in neither .cu nor .py; give --language")
    chosen = {}
    for knob in knobs:
        name, equals, value = knob.partition("=")
        if not equals or not value.lstrip("-").isdecimal():
            raise ValueError(f"--knob {knob!r} is not name=number")
        chosen[name] = int(value)
    main_file = MAIN_FILE[cast(Language, kind)]
    return Candidate(cast(Language, kind), {main_file: file.read_text(encoding="utf-8")}, chosen)


def _anew(candidate: Candidate) -> Candidate:
    """The same kernel with a comment that no cache knows."""
    text = f"{candidate.source}\n// {secrets.token_hex(8)}\n"
    return Candidate(candidate.language, {candidate.main_file: text}, candidate.knobs)


def _progress(started: float) -> Callable[[str, dict[str, Any]], None]:
    def tell(stage: str, detail: dict[str, Any]) -> None:
        words = " ".join([stage, *(f"{name}={value}" for name, value in detail.items())])
        _say(f"{time.monotonic() - started:6.1f} s  {words}")

    return tell


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
