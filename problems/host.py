"""The program that runs an untrusted problem file, inside a sandbox.

    python -m problems.host FILE describe    --world 4
    python -m problems.host FILE materialize --shape tiny --world 4 --seed 1
    python -m problems.host FILE defective   --shape tiny --world 4 --seed 1
    python -m problems.host FILE lint

One command per process. The answer is written into the current folder as `problems.wire` says.
With --hidden SEED WORLD before the command, the problem has the hidden shapes of that seed, too.
Exit codes: 0 answered, 1 the problem's file is at fault (the answer says how), 2 usage.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from problems import wire
from problems.errors import blamed
from problems.hosting import InProcessHost
from problems.loading import load_problem


def main(arguments: Sequence[str] | None = None) -> int:
    """Load the file, answer one command, return the exit code."""
    asked = _parser().parse_args(arguments)
    folder = Path.cwd()
    try:
        _answer(folder, asked)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the file may raise anything
        wire.write_error(folder, asked.command, blamed(error, str(asked.file), "It failed"))
        return 1
    return 0


def _answer(folder: Path, asked: argparse.Namespace) -> None:
    host = InProcessHost(load_problem(asked.file))
    if asked.hidden is not None:
        host = host.with_hidden(*asked.hidden)
    if asked.command == "describe":
        description = host.describe(asked.world).to_json()
        wire.write_result(folder, "describe", {"description": description})
    elif asked.command == "lint":
        wire.write_result(folder, "lint", {"report": host.lint().to_json()})
    elif asked.command == "materialize":
        made = host.materialize(asked.shape, asked.world, asked.seed)
        sets = {"inputs": made.inputs, "reference": made.reference, "golden": made.golden}
        wire.write_result(folder, "materialize", {}, sets)
    else:
        sets = host.defective(asked.shape, asked.world, asked.seed)
        wire.write_result(folder, "defective", {}, sets)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m problems.host")
    parser.add_argument("file", type=Path, help="Python file with one subclass of Problem")
    parser.add_argument(
        "--hidden", type=int, nargs=2, metavar=("SEED", "WORLD"), help="draw hidden shapes, too"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    describe = commands.add_parser("describe")
    describe.add_argument("--world", type=int, default=4)
    for name in ("materialize", "defective"):
        command = commands.add_parser(name)
        command.add_argument("--shape", required=True)
        command.add_argument("--world", type=int, required=True)
        command.add_argument("--seed", type=int, required=True)
    commands.add_parser("lint")
    return parser


if __name__ == "__main__":
    sys.exit(main())
