"""Fits the sheet's entries that no microbenchmark gives to the fit set, one after another.

    python3 -m benchmarks.twin.fit --max-us 400 --entries poll_us,enter_us

Each entry is tried at a tenth less and a tenth more, and moved on while that helps. The figure is
the mean absolute logarithm of predicted over measured: of the fit set only, which shares no
(kernel, size) with the points that validate, and of it what is not superseded. It prints what it
finds; put it into the sheet.
"""

import argparse
import dataclasses
import math
import os
import statistics
import sys
from collections.abc import Sequence

from benchmarks.twin.__main__ import CACHE, FITTED
from benchmarks.twin.measured import MeasuredPoint, read
from benchmarks.twin.predict import predict
from pk_runtime.sheet import Sheet, load_sheet

ENTRIES = (
    "tensor_flops_per_us",
    "l2_bytes_per_us",
    "sm_shared_bytes_per_us",
    "hbm_latency_us",
    "slab_latency_us",
    "acquire_us",
    "poll_us",
    "enter_us",
)
STEP = 1.1
MOST_STEPS = 4


def changed(sheet: Sheet, **entries: float) -> Sheet:
    """The sheet with other values in [simulator]."""
    return dataclasses.replace(sheet, simulator=dataclasses.replace(sheet.simulator, **entries))


def figure(points: Sequence[MeasuredPoint], sheet: Sheet, jobs: int) -> float:
    """Mean absolute logarithm of predicted over measured."""
    found = predict(points, sheet, CACHE, jobs)
    return statistics.fmean(abs(math.log1p(p.error)) for p in found)


def fit_entry(name: str, sheet: Sheet, points: Sequence[MeasuredPoint], jobs: int) -> Sheet:
    """Moves one entry in steps of a tenth while the figure falls; the best sheet."""
    best = figure(points, sheet, jobs)
    print(f"{name} = {getattr(sheet.simulator, name):.6g}: {best:.4f}", flush=True)
    for factor in (STEP, 1 / STEP):
        moved = False
        for _ in range(MOST_STEPS):
            tried = changed(sheet, **{name: getattr(sheet.simulator, name) * factor})
            found = figure(points, tried, jobs)
            print(f"  {getattr(tried.simulator, name):.6g}: {found:.4f}", flush=True)
            if found >= best:
                break
            sheet, best, moved = tried, found, True
        if moved:
            break
    return sheet


def main(argv: Sequence[str] | None = None) -> int:
    """Fits and prints; 2 for entries that the sheet does not have, or without points."""
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.twin.fit", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--max-us", type=float, default=800.0, help="leave out longer points")
    parser.add_argument("--only", action="append", metavar="TEXT", help="kernels and sizes with it")
    parser.add_argument("--entries", default=",".join(ENTRIES))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(sys.argv[1:] if argv is None else argv)
    measured = read(FITTED)
    sheet = load_sheet(measured.sheet)
    names = options.entries.split(",")
    if unknown := [name for name in names if not hasattr(sheet.simulator, name)]:
        print(f"fit: the sheet has no {', '.join(unknown)}", file=sys.stderr)
        return 2
    fit = measured.fit_groups
    points = [
        p
        for p in measured.current
        if p.group in fit
        and p.us <= options.max_us
        and (not options.only or any(text in p.group for text in options.only))
    ]
    if not points:
        print("fit: the fit set has no such point that is not superseded", file=sys.stderr)
        return 2
    print(f"{len(points)} points of the fit set")
    for name in names:
        sheet = fit_entry(name, sheet, points, options.jobs)
    for name in names:
        print(f"{name} = {getattr(sheet.simulator, name):.6g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
