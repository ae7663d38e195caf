"""Identifiers that sort by time of creation: a prefix and a UUIDv7 in Crockford's base 32."""

from __future__ import annotations

import secrets
import threading
import time
from typing import Literal

Prefix = Literal["job", "evl", "att", "prb"]

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH = 26
_COUNTER_BITS = 12


class _Clock:
    """Milliseconds and a counter that never repeat within this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def tick(self) -> int:
        """60 bits: 48 of milliseconds since 1970, 12 of a counter within the millisecond."""
        with self._lock:
            now = time.time_ns() // 1_000_000 << _COUNTER_BITS
            self._last = max(now, self._last + 1)
            return self._last


_clock = _Clock()


def new_id(prefix: Prefix) -> str:
    """A new id such as `job_01jd...`; ids made by one process sort in the order they were made."""
    tick = _clock.tick()
    milliseconds, counter = tick >> _COUNTER_BITS, tick & ((1 << _COUNTER_BITS) - 1)
    value = milliseconds << 80 | 0x7 << 76 | counter << 64 | 0b10 << 62 | secrets.randbits(62)
    digits = []
    for _ in range(_LENGTH):
        value, digit = divmod(value, 32)
        digits.append(_ALPHABET[digit])
    return f"{prefix}_{''.join(reversed(digits))}"
