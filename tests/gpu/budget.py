"""How long the tests may take altogether: what is left of it bounds every wait, the last ones too.

Without `start` there is no end, as for a single command.
"""

import math
import time

_end = math.inf


def start(seconds: float) -> None:
    """The time begins now; non-positive or infinite means that there is no end."""
    global _end
    _end = time.monotonic() + seconds if 0 < seconds < math.inf else math.inf


def started() -> bool:
    """Whether there is an end."""
    return _end < math.inf


def left() -> float:
    """Seconds that are left; infinite without an end, 0 after it."""
    return max(0.0, _end - time.monotonic())


def within(seconds: float) -> float:
    """That many seconds, or what is left if that is less."""
    return min(seconds, left())
