"""Predicts every measured time of our kernels and says how far off the predictions are.

    python3 -m benchmarks.twin                       # no GPU: predict, compare, print
    python3 -m benchmarks.twin --write               # and write docs/twin.md, the plot, the summary
    python3 -m benchmarks.twin --measured FILE       # one machine; its file names the sheet
    python3 -m benchmarks.twin --measure OUT.json    # 2 or 4 GPUs, under 8 minutes: a measured file
    python3 -m benchmarks.twin --extract OUT.json BENCH.json ...   # from records of benchmarks.gpu

Kernels are built once and cached. One core takes about two minutes for all points.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.twin.measured import extract, read, write
from benchmarks.twin.plot import svg
from benchmarks.twin.predict import Comparison, Prediction, PredictionError, predict
from benchmarks.twin.report import Result, page, points_name, points_page, replaced, summary
from pk_runtime.compiler import BuildError
from pk_runtime.sheet import Sheet, SheetError, load_sheet, read_sheet
from pk_runtime.toolchain import ToolchainError

FOLDER = Path(__file__).parent
DOCS = FOLDER.parents[1] / "docs"
FITTED = FOLDER / "measured" / "h200x4-2026-11-21.json"
MEASURED = (FITTED, FOLDER / "measured" / "h200x2-2026-11-21.json")
CACHE = FOLDER.parents[1] / ".pkforge" / "twin"
GPU_SECONDS = 400.0  # no row begins later: with builds it ends within 8 minutes


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; exits with a message for a wrong one."""
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.twin", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--measured", type=Path, metavar="FILE", help="default: every machine's")
    parser.add_argument("--sheet", help="a shipped sheet or a .toml file; default: the file's own")
    parser.add_argument("--only", action="append", metavar="TEXT", help="kernels and sizes with it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"default {CACHE}")
    parser.add_argument("--write", action="store_true", help="write into docs/")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where --write writes")
    parser.add_argument("--measure", type=Path, metavar="OUT", help="measure on this node's GPUs")
    parser.add_argument("--extract", type=Path, nargs="+", metavar=("OUT", "BENCH"))
    options = parser.parse_args(argv)
    if options.write and (options.only or options.measured or options.sheet):
        parser.error("--write is of all points: leave out --only, --measured and --sheet")
    return options


def measure(out: Path) -> int:
    """Runs benchmarks.gpu on this node and keeps our points; its exit code."""
    from benchmarks.gpu.__main__ import main as benchmark

    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "bench.json"
        code = benchmark(["--json", str(record), "--seconds", str(GPU_SECONDS)])
        if not record.exists():
            return code or 1
        write(out, extract([json.loads(record.read_text(encoding="utf-8"))]))
    print(f"written to {out}")
    return code


def _sheet(name: str) -> Sheet:
    return read_sheet(Path(name)) if name.endswith(".toml") else load_sheet(name)


def compare(options: argparse.Namespace) -> Result:
    """Predicts what the options name and prints a line for every point."""
    begun = time.monotonic()
    paths = [options.measured] if options.measured else MEASURED
    found = [one for path in paths if (one := _compare(path, options)).predictions]
    if not found:
        raise ValueError(f"no measured point has {' or '.join(options.only)} in its name")
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    return Result(found, date, time.monotonic() - begun)


def _compare(path: Path, options: argparse.Namespace) -> Comparison:
    measured = read(path)
    sheet = _sheet(options.sheet or measured.sheet)
    wanted = options.only or [""]
    points = [p for p in measured.current if any(text in p.group for text in wanted)]

    def show(p: Prediction) -> None:
        knobs = " ".join(f"{k}={v}" for k, v in p.point.knobs.items())
        print(
            f"{p.point.us:9.1f} measured {p.us:9.1f} simulated {100 * p.error:+6.1f} %  "
            f"{measured.machine}  {p.point.group} {knobs}",
            flush=True,
        )

    predictions = predict(points, sheet, options.cache, options.jobs, show)
    return Comparison(measured, predictions, sheet.name)


def main(argv: Sequence[str] | None = None) -> int:
    """Compares, measures or extracts; 1 if something could not be measured, 2 for a bad input."""
    options = parse(sys.argv[1:] if argv is None else argv)
    try:
        if options.measure:
            return measure(options.measure)
        if options.extract:
            out, *records = options.extract
            found = [json.loads(path.read_text(encoding="utf-8")) for path in records]
            write(out, extract(found))
            return 0
        result = compare(options)
        print("\n" + summary(result))
        if options.write:
            document = options.docs / "benchmarks.md"
            text = replaced(document.read_text(encoding="utf-8"), summary(result))
            document.write_text(text, encoding="utf-8")
            (options.docs / "twin.svg").write_text(svg(result.comparisons), encoding="utf-8")
            (options.docs / "twin.md").write_text(page(result), encoding="utf-8")
            for comparison in result.comparisons:
                text = points_page(comparison, result.date)
                (options.docs / points_name(comparison)).write_text(text, encoding="utf-8")
    except (OSError, ValueError, IndexError, PredictionError) as error:
        print(f"benchmarks.twin: {error}", file=sys.stderr)
        return 2
    except (BuildError, ToolchainError, SheetError) as error:
        print(f"benchmarks.twin: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
