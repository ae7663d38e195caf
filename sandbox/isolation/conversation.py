"""One container as the judge sees it: what goes in, what comes out, and by when."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from pk_runtime.execution import Command, Completed, Exceeded
from sandbox.isolation.base import SandboxFault
from sandbox.isolation.container import DONE, ERRORS, FAULT, OUTPUT, STARTED
from sandbox.isolation.exchange import Frames, Inbox, outgoing

_SETUP_S = 60.0
_FINISH_S = 60.0
_TICK_S = 0.5
_READ_BYTES = 1 << 18
_SHOWN = 500
_EXCEEDED: dict[str, Exceeded | None] = {"-": None, "wall": "wall", "output": "output"}


@dataclass
class Conversation:
    """One run of `docker run`; `argv` is its command line, `files` what it must inherit."""

    command: Command
    argv: list[str]
    files: tuple[int, ...]
    room: int
    output: dict[bytes, bytearray] = field(
        default_factory=lambda: {OUTPUT: bytearray(), ERRORS: bytearray()}
    )
    said: bytearray = field(default_factory=bytearray)
    started: float | None = None
    fault: str | None = None
    result: str | None = None
    late: bool = False

    def to_end(self, payload: bytes, out_of_memory: Callable[[], bool]) -> Completed:
        """Sends, receives and says how it ended; SandboxFault when the sandbox failed."""
        inbox = Inbox(self.command.workdir, self.room)
        try:
            process = self._start()
            with process, contextlib.closing(outgoing(self.command.workdir)) as files:
                try:
                    self._talk(process, chain((payload,), files), inbox)
                finally:
                    process.kill()
            if self.result is not None:
                inbox.finish()
        finally:
            inbox.close()
        return self._completed(process.returncode, out_of_memory)

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                self.argv,
                env={},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=self.files,
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxFault(f"docker cannot be started: {error}") from error

    def _talk(self, process: subprocess.Popen[bytes], given: Iterator[bytes], inbox: Inbox) -> None:
        """Until the container has closed its end; afterwards `late` or `result` may be set."""
        assert process.stdin is not None
        frames, pending = Frames(), memoryview(b"")
        began = time.monotonic()
        with selectors.DefaultSelector() as selector:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                selector.register(stream, selectors.EVENT_READ)
            open_streams = 2
            while open_streams:
                for key, _ in selector.select(_TICK_S):
                    if key.fileobj is process.stdin:
                        pending = pending or memoryview(next(given, b""))
                        if not pending:  # it stays open: its end would be the judge's
                            selector.unregister(key.fileobj)
                            continue
                        try:
                            pending = pending[os.write(key.fd, pending) :]
                        except BrokenPipeError:
                            selector.unregister(key.fileobj)
                        continue
                    data = os.read(key.fd, _READ_BYTES)
                    if not data:
                        selector.unregister(key.fileobj)
                        open_streams -= 1
                    elif key.fileobj is process.stderr:
                        self.said = (self.said + data)[-_READ_BYTES:]
                    else:
                        for kind, payload in frames.add(data):
                            self._take(kind, payload, inbox)
                if time.monotonic() > self._deadline(began):
                    self.late = True
                    return
            self._await_end(process)

    def _deadline(self, began: float) -> float:
        if self.started is None:
            return began + _SETUP_S
        return self.started + self.command.limits.wall_s + _FINISH_S

    def _await_end(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(_FINISH_S)
        except subprocess.TimeoutExpired:
            self.late = True

    def _take(self, kind: bytes, payload: bytes, inbox: Inbox) -> None:
        if kind == STARTED:
            self.started = time.monotonic()
        elif kind in self.output:
            room = self.command.limits.output_bytes - sum(map(len, self.output.values()))
            self.output[kind] += payload[:room]
        elif kind == DONE:
            self.result = payload.decode(errors="replace")
        elif kind == FAULT:
            self.fault = payload.decode(errors="replace")
        else:
            inbox.take(kind, payload)

    def _completed(self, returncode: int, out_of_memory: Callable[[], bool]) -> Completed:
        if self.fault is not None:
            program = self.command.argv[0]
            said = self.output[ERRORS].decode(errors="replace").strip()[-_SHOWN:]
            raise SandboxFault(f"the sandbox of {program!r} failed: {self.fault} {said}".rstrip())
        if self.result is None:
            return self._lost(returncode, out_of_memory)
        code, exceeded, wall_s = _read(self.result)
        if code != 0 and exceeded is None and out_of_memory():
            exceeded = "memory"
        return self._ended(code, exceeded, wall_s)

    def _lost(self, returncode: int, out_of_memory: Callable[[], bool]) -> Completed:
        """The container ended without a word of how: by its limit on memory, or by us."""
        since = time.monotonic() - (self.started or time.monotonic())
        if self.started is not None and self.late:
            return self._ended(-signal.SIGKILL, "wall", since)
        if self.started is not None and out_of_memory():
            return self._ended(-signal.SIGKILL, "memory", since)
        if self.late:
            raise SandboxFault("the container did not start in time")
        said = bytes(self.said).decode(errors="replace").strip()[-_SHOWN:]
        raise SandboxFault(f"the sandbox failed: docker ended with code {returncode}: {said}")

    def _ended(self, code: int, exceeded: Exceeded | None, wall_s: float) -> Completed:
        return Completed(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            exceeded=exceeded,
            stdout=bytes(self.output[OUTPUT]),
            stderr=bytes(self.output[ERRORS]),
            wall_s=wall_s,
        )


def _read(result: str) -> tuple[int, Exceeded | None, float]:
    try:
        code, word, wall_s = result.split()
        return int(code), _EXCEEDED[word], float(wall_s)
    except (ValueError, KeyError) as error:
        raise SandboxFault(f"the container reports nonsense: {result[:80]!r}") from error
