"""Evaluates again and again, some candidates hostile, several at a time, and counts what is left.

    python3 -m benchmarks.soak [--count 500] [--parallel 4] [--hostile-every 10]
                               [--isolation docker|bubblewrap|namespaces] [--docker-host HOST]
                               [--json OUT] [--markdown OUT]

One process with `--parallel` judges that share a cache, as a worker has them. A tenth of the
evaluations are hostile: kernels that loop, crash, deadlock or blow up the compiler, and problem
files that fork, eat memory, fill the disk or leave survivors. Every answer must be the right one.
What processes, memory, disk, descriptors, mounts, control groups and containers there are is
counted after a first tenth, which fills caches, and at the end.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.soak.traces import count, grown
from benchmarks.soak.work import REFUSED, Work, stream
from pk_runtime.target import parse_target
from problems.errors import ProblemError
from sandbox.isolation import IsolatedExecutor, backends
from sandbox.judge import Judge

TARGET = parse_target("sim:h200x4")
# More of these than before is no leak: allocators keep some memory, the cache takes new programs.
ALLOWED = {"memory, MiB": 64.0, "disk, MiB": 256.0}


@dataclass(frozen=True)
class Answer:
    """What the judge said of one evaluation."""

    work: Work
    status: str
    summary: str
    seconds: float

    @property
    def right(self) -> bool:
        """Whether that is what it had to say."""
        return self.status in self.work.expected


class Judges:
    """One judge for each thread, all with the same cache."""

    def __init__(self, cache: Path, executor: IsolatedExecutor) -> None:
        self._cache, self._executor = cache, executor
        self._own = threading.local()

    def answer(self, work: Work) -> Answer:
        """Evaluates; a problem file that is refused is an answer, too."""
        judge = getattr(self._own, "judge", None)
        if judge is None:
            judge = self._own.judge = Judge(cache=self._cache, executor=self._executor)
        started = time.monotonic()
        try:
            verdict = judge.evaluate(
                work.candidate, work.problem, TARGET, depth="quick", shapes=work.shapes
            )
            status, summary = verdict.status, verdict.summary
        except ProblemError as error:
            status, summary = REFUSED, str(error)
        return Answer(work, status, summary, time.monotonic() - started)


def soak(
    executor: IsolatedExecutor,
    cache: Path,
    number: int,
    parallel: int,
    hostile_every: int,
    docker_host: str = "",
) -> tuple[list[Answer], dict[str, float], dict[str, float]]:
    """The answers, and what there was after the first tenth and at the end."""
    judges = Judges(cache, executor)
    works = list(stream(number, hostile_every))
    first = max(parallel, number // 10)
    with ThreadPoolExecutor(parallel) as pool:
        answers = list(pool.map(judges.answer, works[:first]))
        gc.collect()
        before = count(cache, docker_host)
        answers += pool.map(judges.answer, works[first:])
        gc.collect()
        after = count(cache, docker_host)
    return answers, before, after


def leaks(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What grew by more than is allowed."""
    more = grown(before, after)
    return {name: by for name, by in more.items() if by > ALLOWED.get(name, 0.0)}


def table(
    before: Mapping[str, float], after: Mapping[str, float], answers: Sequence[Answer]
) -> str:
    """Markdown: the counts, and the answers by what was evaluated."""
    lines = ["| | after the first tenth | at the end |", "|---|---|---|"]
    lines += [f"| {name} | {before[name]:.0f} | {after[name]:.0f} |" for name in before]
    lines += ["", "| evaluated | times | answer |", "|---|---|---|"]
    said = Counter(
        ("shipped kernels" if a.work.expected == ("correct",) else a.work.name, a.status)
        for a in answers
    )
    lines += [f"| {name} | {times} | {status} |" for (name, status), times in sorted(said.items())]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs and prints; 1 if an answer was wrong or something was left behind."""
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--hostile-every", type=int, default=10)
    parser.add_argument("--isolation", choices=tuple(backends()), default="bubblewrap")
    parser.add_argument("--docker-host", default="", help="address of the engine")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    options = parser.parse_args(argv)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pkforge-soak-") as folder:
        Path(folder).chmod(0o755)
        Path(folder, "tmp").mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = str(Path(folder, "tmp"))
        executor = backends(docker_host=options.docker_host)[options.isolation]()
        answers, before, after = soak(
            executor, Path(folder), options.count, options.parallel, options.hostile_every,
            options.docker_host,
        )  # fmt: skip
    wrong = [answer for answer in answers if not answer.right]
    for answer in wrong:
        print(f"{answer.work.name}: {answer.status}: {answer.summary}", file=sys.stderr)
    left = leaks(before, after)
    text = table(before, after, answers)
    print(text)
    print(
        f"\n{len(answers)} evaluations, {options.parallel} at a time, {options.isolation}, "
        f"{time.monotonic() - started:.0f} s; {len(wrong)} wrong answers; "
        + (f"left behind: {left}" if left else "nothing left behind")
    )
    if options.json:
        document = {"before": before, "after": after, "left": left, "wrong": len(wrong)}
        options.json.write_text(json.dumps(document, indent=1))
    if options.markdown:
        options.markdown.write_text(text + "\n", encoding="utf-8")
    return 1 if wrong or left else 0


if __name__ == "__main__":
    sys.exit(main())
