"""Judges every cheating and every honest candidate of the suite and counts what is caught.

    python3 -m benchmarks.attacks [--target sim:h200x4] [--kind attack|honest]
        [--sort pk|cuda|triton|problem] [--only TEXT] [--for-a-gpu] [--jobs 2] [--json OUT]
        [--markdown OUT]

Every attack must get the status that its header names, for the reason that it names; every honest
candidate must be `correct`. On `sim:` targets `cuda` candidates are judged as far as a CPU goes, by
their text; on a node with GPUs, `--target cuda:h200x4` runs them, and `--for-a-gpu` those alone
that nothing else can judge. `triton` candidates are judged by their text everywhere. Exit code 1 if
anything is missed or an honest candidate is refused.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from benchmarks.attacks.judging import Outcome, examine, judge_at
from benchmarks.attacks.suite import KINDS, SORTS, Entry, entries
from benchmarks.attacks.table import every_candidate, markdown, summary
from pk_runtime.target import parse_target

CACHE = Path(".pkforge") / "attacks"


def judged(chosen: Sequence[Entry], target: str, cache: Path, jobs: int = 1) -> list[Outcome]:
    """The outcomes of some entries, in their order; `jobs` processes share the build cache.

    GPUs are judged on by one process: it holds them.
    """
    if jobs == 1 or target.startswith("cuda:"):
        return _share(list(chosen), target, cache)
    judge_at(cache).close()
    shares = [list(chosen[i::jobs]) for i in range(jobs)]
    with ProcessPoolExecutor(jobs) as pool:
        found = list(pool.map(_share, shares, [target] * jobs, [cache] * jobs))
    order = {(e.kind, e.sort, e.name): n for n, e in enumerate(chosen)}
    merged = [outcome for share in found for outcome in share]
    return sorted(merged, key=lambda o: order[(o.entry.kind, o.entry.sort, o.entry.name)])


def _share(chosen: list[Entry], target: str, cache: Path) -> list[Outcome]:
    torch.set_num_threads(1)
    found = []
    with judge_at(cache) as judge:
        for entry in chosen:
            found.append(examine(judge, entry, parse_target(target)))
            if not found[-1].ok:
                print(_complaint(found[-1]), file=sys.stderr, flush=True)
    return found


def _complaint(outcome: Outcome) -> str:
    entry = outcome.entry
    lacks = f", without {', '.join(outcome.missing)}" if outcome.missing else ""
    return (
        f"{entry.kind} {entry.sort}/{entry.name}: wanted {entry.status}, got "
        f"{outcome.status}{lacks}: {outcome.said[:300]}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Judges and prints; 1 if an attack is missed or an honest candidate refused."""
    parser = argparse.ArgumentParser(prog="benchmarks.attacks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--target", default="sim:h200x4")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--sort", choices=SORTS)
    parser.add_argument("--only", help="names that contain this")
    parser.add_argument("--for-a-gpu", action="store_true", help="what only GPUs can judge")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    options = parser.parse_args(argv)
    chosen = [
        entry
        for entry in entries(options.kind, options.sort)
        if (options.only or "") in entry.name and (entry.for_a_gpu or not options.for_a_gpu)
    ]
    started = time.monotonic()
    outcomes = judged(chosen, options.target, options.cache, options.jobs)
    print(markdown(outcomes))
    print(f"\n{summary(outcomes)}; {time.monotonic() - started:.0f} s on {options.target}")
    if options.json:
        options.json.write_text(json.dumps([o.to_json() for o in outcomes], indent=1))
    if options.markdown:
        text = f"{markdown(outcomes)}\n\n{every_candidate(outcomes)}\n"
        options.markdown.write_text(text, encoding="utf-8")
    return 0 if all(outcome.ok for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
