"""Ending a job's work from outside: cancelled, drained, or its lease lost.

The work runs in the main thread and may be deep in an evaluation or a model call, so it is ended
as Ctrl-C would end it: a signal wakes the main thread, whose handler raises `Interrupted`. Whatever
was started on the way (compilers, sandboxes) is killed by its `finally`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Literal, Self

Reason = Literal["cancelled", "drained", "lease_lost"]

_WAKE = signal.SIGUSR2
_DRAIN = (signal.SIGTERM, signal.SIGINT)


class Interrupted(BaseException):
    """The work has to end now; `reason` says why. Like KeyboardInterrupt, no error handler's."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class Interruption:
    """The state of one job's interruption. Enter it in the thread that works.

    In the main thread SIGTERM and SIGINT drain the job while it is entered, and `request` ends what
    runs inside `interruptible`. In another thread only `check` ends the work.
    """

    def __init__(self) -> None:
        self.reason: Reason | None = None
        self._armed = False
        self._main = threading.current_thread() is threading.main_thread()
        self._thread_id = threading.get_ident()
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if self._main:
            for number in (*_DRAIN, _WAKE):
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        previous, self._previous = self._previous, {}
        for number, handler in previous.items():
            signal.signal(number, handler)

    def request(self, reason: Reason) -> None:
        """End the work for `reason`; from any thread. The first reason stays."""
        self.reason = self.reason or reason
        # Without the handlers of `__enter__` the signal would end the process.
        if self._previous:
            signal.pthread_kill(self._thread_id, _WAKE)

    def check(self) -> None:
        """Raise Interrupted if the end was requested."""
        if self.reason is not None:
            raise Interrupted(self.reason)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let requests end what runs in the block, at any point of it."""
        self._armed = True
        try:
            self.check()
            yield
        finally:
            self._armed = False

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Let what runs in the block finish first, then end the work if that was requested.

        What the block did is stored by then, so the end loses nothing.
        """
        armed, self._armed = self._armed, False
        try:
            yield
        finally:
            self._armed = armed
        if armed:
            self.check()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number in _DRAIN:
            self.reason = self.reason or "drained"
        if self._armed and self.reason is not None:
            # Once: a second one would break the cleaning up that the first has set off.
            self._armed = False
            raise Interrupted(self.reason)
