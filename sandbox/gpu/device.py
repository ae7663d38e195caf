"""The judge's own device code (device.cu) as functions on streams. No torch here."""

import ctypes as c
from collections.abc import Sequence
from pathlib import Path

from pk_runtime.candidate import Candidate
from pk_runtime.gpu.binding import LaunchError

MEETING_BYTES = 4 << 10
_SOURCE = Path(__file__).with_name("device.cu")


def source() -> Candidate:
    """The code as something that `Compiler.library` builds."""
    return Candidate("cuda", {"kernel.cu": _SOURCE.read_text(encoding="utf-8")})


class Helpers:
    """The built code. LaunchError if it cannot be loaded, or the driver refuses a launch."""

    def __init__(self, library: Path) -> None:
        try:
            self._calls = c.CDLL(str(library))
            self._calls.judge_delay.argtypes = (c.c_void_p, c.c_uint64)
            self._calls.judge_meet.argtypes = (
                c.c_void_p,
                c.POINTER(c.c_void_p),
                c.c_int,
                c.c_int,
                c.c_uint64,
            )
        except (OSError, AttributeError) as error:
            raise LaunchError(f"{library} is not the judge's device code: {error}") from error

    def delay(self, stream: int, ns: int) -> None:
        """Keeps the stream busy for `ns`."""
        self._must("delay", self._calls.judge_delay(c.c_void_p(stream), ns))

    def meet(self, stream: int, counters: Sequence[int], rank: int, timeout_ns: int) -> None:
        """All ranks meet on the device; `counters` are the addresses of every rank's memory."""
        table = (c.c_void_p * len(counters))(*counters)
        error = self._calls.judge_meet(c.c_void_p(stream), table, rank, len(counters), timeout_ns)
        self._must("meeting", error)

    @staticmethod
    def _must(what: str, error: int) -> None:
        if error:
            raise LaunchError(f"the {what} cannot be launched: CUDA error {error}")
