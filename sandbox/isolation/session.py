"""A sandboxed process that runs while the judge talks to it."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from pk_runtime.execution import Completed
from sandbox.isolation.base import SandboxFault
from sandbox.isolation.watch import Watch

_KILL_S = 70.0  # the watch itself gives up before


class Session:
    """One sandbox and its command, from `NamespaceExecutor.start` on; usable from any thread.

    It ends with its command, with `limits.wall_s` (counted from when the sandbox stands), with too
    much output or memory, with `kill()`, or with this process; nothing survives it. As a context
    manager it is killed at the end of the block.
    """

    def __init__(self, watch: Watch, finish: Callable[[], None]) -> None:
        self._watch = watch
        self._finish = finish
        self._completed: Completed | None = None
        self._fault: BaseException | None = None
        # The kernel ties the launcher to the thread that starts it, so that thread stays with it.
        self._thread = threading.Thread(target=self._to_end, name="sandbox session", daemon=True)
        self._thread.start()

    def _to_end(self) -> None:
        try:
            self._completed = self._watch.to_end()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._fault = error
        finally:
            self._watch.close_channel()
            self._finish()

    def poll(self) -> Completed | None:
        """How it ended, or None while it runs; SandboxFault when the sandbox itself failed."""
        return None if self._thread.is_alive() else self._outcome()

    def wait(self, timeout_s: float) -> Completed:
        """Waits for the end; TimeoutError after `timeout_s` seconds, and it runs on."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the sandboxed process still runs after {timeout_s:g} s")
        return self._outcome()

    def stop(self) -> None:
        """Asks for the end of the whole sandbox and does not wait: several then end together."""
        self._watch.stop.set()

    def kill(self) -> Completed:
        """Ends the whole sandbox and waits until nothing of it is left.

        A session that had ended keeps its outcome; otherwise it ended by SIGKILL. SandboxFault when
        the kernel does not end a process within a minute, or when the sandbox had failed.
        """
        self.stop()
        self._thread.join(_KILL_S)
        if self._thread.is_alive():
            raise SandboxFault(f"the sandbox did not end within {_KILL_S:g} s of being killed")
        return self._outcome()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._thread.join(_KILL_S)

    def _outcome(self) -> Completed:
        if self._fault is not None:
            raise self._fault
        assert self._completed is not None
        return self._completed
