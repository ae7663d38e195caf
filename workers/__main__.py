"""`python -m workers run-job ID`: what the embedded dispatcher starts for each job."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from workers.processes import abandon, die_with_parent, exit_now

if TYPE_CHECKING:
    from workers.parts import OpenParts


def main(arguments: list[str] | None = None, *, open_parts: OpenParts | None = None) -> int:
    """Run one job with the settings of the environment. Exits 0 however the job ends.

    `open_parts` replaces the real policies and judge.
    """
    parser = argparse.ArgumentParser(prog="python -m workers", description=__doc__)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run-job", help="run one queued job to its end")
    run.add_argument("job_id")
    run.add_argument("--parent", type=int, help="end when this process, the parent, ends")
    options = parser.parse_args(arguments)
    # Before the imports that take seconds: the parent may end meanwhile.
    if options.parent is not None:
        die_with_parent(options.parent)

    from store import Settings
    from workers.logs import configure_logs
    from workers.runner import run_job

    configure_logs()
    end = run_job(options.job_id, Settings(), open_parts=open_parts, last_resort=abandon)
    if end in ("queued", "lost", "cancelled"):
        # Threads of an evaluation that was cut off may still run; nobody waits for them.
        exit_now(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
