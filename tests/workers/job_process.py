"""As `python -m workers`, with the example judge: `... job_process run-job ID`."""

from __future__ import annotations

import sys

from tests.workers.examples import example_parts
from workers.__main__ import main

COMMAND = (sys.executable, "-m", "tests.workers.job_process", "run-job")

if __name__ == "__main__":
    sys.exit(main(open_parts=example_parts))
