"""`python -m pk_runtime.calibrate`."""

import sys

from pk_runtime.calibrate.cli import main

sys.exit(main())
