"""`python -m pk_runtime.calibrate`."""

import sys

from pk_runtime.calibrate.cli import main

if __name__ == "__main__":  # not in the processes that measure NCCL
    sys.exit(main())
