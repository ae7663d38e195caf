"""One run of the launcher as the judge sees it: output, deadlines, and the launcher's report."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from pk_runtime.execution import Command, Completed, Exceeded, resident_bytes
from sandbox.isolation import cgroup, launcher
from sandbox.isolation.base import SandboxFault

_SETUP_S = 30.0
_FINISH_S = 60.0
_TICK_S = 0.05
_READ_BYTES = 1 << 16
_SIGNAL_BASE = 128  # how a sandbox, like a shell, tells that a signal ended the command


@dataclass
class Watch:
    """One run. `to_end` blocks; `stop`, set by any other thread, ends it before its time.

    The launcher lives no longer than the thread that calls `to_end`.
    """

    command: Command
    specification: dict[str, Any]
    group: cgroup.Group
    stop: threading.Event = field(default_factory=threading.Event)
    output: dict[str, bytearray] = field(
        default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()}
    )
    status: bytearray = field(default_factory=bytearray)
    exceeded: Exceeded | None = None
    started: float = field(default_factory=time.monotonic)

    def to_end(self) -> Completed:
        """Launches, collects until nothing is left, and says how it ended; else SandboxFault."""
        reader, writer = os.pipe()
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, reader)
            try:
                process = self._launch(writer)
            finally:
                os.close(writer)
                self.close_channel()
            stack.enter_context(process)
            stack.callback(process.kill)
            self._collect(process, reader)
        return self._completed()

    def close_channel(self) -> None:
        """Closes this process's copy of the command's end of the channel, once."""
        channel, self.specification["channel"] = self.specification["channel"], None
        if channel is not None:
            os.close(channel)

    def _launch(self, status: int) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-I", "-S", "-c", launcher.BOOTSTRAP]
        channel = self.specification["channel"]
        try:
            process = subprocess.Popen(
                argv,
                env={},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(status,) if channel is None else (status, channel),
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxFault(f"cannot start the sandbox launcher: {error}") from error
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(launcher.payload({**self.specification, "status": status}))
        return process

    def _collect(self, process: subprocess.Popen[bytes], status: int) -> None:
        """Reads until the launcher and everything below it has closed its ends."""
        deadline = time.monotonic() + _SETUP_S
        running = stopped = False
        with selectors.DefaultSelector() as selector:
            for name, stream in (("stdout", process.stdout), ("stderr", process.stderr)):
                assert stream is not None
                selector.register(stream, selectors.EVENT_READ, name)
            selector.register(status, selectors.EVENT_READ, "status")
            while selector.get_map():
                for key, _ in selector.select(_TICK_S):
                    self._read(selector, key)
                now = time.monotonic()
                if not running and b"\n" in self.status:
                    running, deadline = True, now + self.command.limits.wall_s
                    self.started = now
                if running and not stopped and self.exceeded is None:
                    self.exceeded = self._limit_reached(process.pid, now > deadline)
                if not stopped and (self.exceeded is not None or self.stop.is_set()):
                    stopped, deadline = True, now + _FINISH_S
                    # Before it runs there is nothing to copy back, and nobody to pass the word on.
                    process.send_signal(signal.SIGTERM if running else signal.SIGKILL)
                if now > deadline and (stopped or not running):
                    raise SandboxFault("the sandbox launcher did not answer in time")

    def _limit_reached(self, launcher: int, late: bool) -> Exceeded | None:
        if self.status.count(b"\n") > 1:  # it ended; what takes time now is our own copying
            return None
        if late:
            return "wall"
        if self.group.limits_memory or resident_bytes(launcher) < self.command.limits.memory_bytes:
            return None
        return "memory"

    def _read(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        chunk = os.read(key.fd, _READ_BYTES)
        if not chunk:
            selector.unregister(key.fileobj)
        elif key.data == "status":
            self.status += chunk
        else:
            room = self.command.limits.output_bytes - sum(map(len, self.output.values()))
            self.output[key.data] += chunk[:room]
            if len(chunk) > room and self.exceeded is None:
                self.exceeded = "output"

    def _completed(self) -> Completed:
        lines = bytes(self.status).decode(errors="replace").splitlines()
        kind, _, report = (lines[-1] if lines else "").partition(" ")
        if kind != "done" and self.stop.is_set():
            return self._ended(None, signal.SIGKILL, time.monotonic() - self.started)
        if kind != "done":
            reason = report if kind == "error" else "its launcher was killed"
            raise SandboxFault(f"the sandbox failed: {reason}")
        told, first_process, wall_s = report.split()
        if self.group.out_of_memory():
            self.exceeded = "memory"
        code = int(told)
        if code < 0:
            if self.exceeded is None and int(first_process) >= 0:
                stderr = bytes(self.output["stderr"]).decode(errors="replace")
                raise SandboxFault(f"the sandbox did not start: {stderr.strip()[-500:]}")
            return self._ended(None, signal.SIGKILL, float(wall_s))
        if code > _SIGNAL_BASE:
            return self._ended(None, code - _SIGNAL_BASE, float(wall_s))
        return self._ended(code, None, float(wall_s))

    def _ended(self, code: int | None, number: int | None, wall_s: float) -> Completed:
        return Completed(
            exit_code=code,
            signal=number,
            exceeded=self.exceeded,
            stdout=bytes(self.output["stdout"]),
            stderr=bytes(self.output["stderr"]),
            wall_s=wall_s,
        )
