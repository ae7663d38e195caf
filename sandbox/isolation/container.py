"""The first process of a container: brings the work folder in, runs the command, hands back what
it left.

Docker gives a container limits, namespaces and a filter, but no way to bound what a command leaves
on the host's disk, and a container outlives whoever started it. Hence this program, which is the
container's first process, as the sandbox's user, before and after the command:

- it fills the work folder, a tmpfs with a limit, from standard input, and ends with all that runs
  here when that input ends: nothing outlives the judge;
- it keeps the wall time and the limit on output, and kills everything but itself at their end;
- it sends back the regular files that are left, when nothing runs any more.

The command has the same user and cannot touch it: the kernel gives the first process of a namespace
only signals that it handles, and it is not to be traced or read (`process`). Still the judge
believes nothing that is sent from here beyond what a command may decide anyway.

Both directions are frames: one byte for the kind, four for the length, the payload (`exchange`).
"""
# ruff: noqa: SIM105 - importing contextlib would take a third of the start

import os
import resource
import select
import signal
import sys
import time

from sandbox.isolation.inside import become_command
from sandbox.isolation.mirror import FOLDER as OPEN_FOLDER
from sandbox.isolation.mirror import MAX_DEPTH
from sandbox.isolation.process import SET_DUMPABLE, default_signals, prctl

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing would take longer than all the rest
    from typing import Any

    Specification = dict[str, Any]

STARTED, OUTPUT, ERRORS, KEPT, FOLDER, FILE, CHUNK, DONE, FAULT = (
    b"s", b"o", b"e", b"k", b"d", b"f", b"c", b"z", b"x"
)  # fmt: skip
CHUNK_BYTES = 1 << 18

_READ_BYTES = 1 << 16
_MARGIN_NS = 20_000_000  # files written this shortly before the start count as changed
_END_S = 30.0
_FIRST_TO_GO = "1000"  # when memory runs out, the command goes before this process


def main(specification: "Specification") -> None:
    """Runs one specification; the frames on standard output end with DONE or FAULT."""
    try:
        default_signals()
        prctl(SET_DUMPABLE, 0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(specification["workdir"])
        workdir = os.open(".", OPEN_FOLDER)
        stamps = _fill()
        began_ns, began = time.time_ns(), time.monotonic()
        run = _Run(specification, began)
        exceeded = run.until_end()
        wall_s = time.monotonic() - began
        os.fchmod(workdir, 0o700)  # it may be closed even to its owner
        _Sender(specification["room"], stamps, began_ns - _MARGIN_NS).send_folder(b".", b"", 0)
        _send(DONE, f"{run.outcome} {exceeded} {wall_s:.6f}".encode())
    except Exception as error:  # noqa: BLE001 - reported whole to the judge, which raises it
        _send(FAULT, f"{type(error).__name__}: {error}".encode(errors="replace"))
    os._exit(0)


def _send(kind: bytes, payload: bytes = b"") -> None:
    data = kind + len(payload).to_bytes(4, "big") + payload
    while data:
        data = data[os.write(1, data) :]


def _fill() -> "dict[bytes, tuple[int, int]]":
    """Makes the work folder from standard input; what identifies each untouched file, by path."""
    stamps: dict[bytes, tuple[int, int]] = {}
    source, writer, path = sys.stdin.buffer, -1, b""
    while True:
        kind = source.read(1)
        payload = source.read(int.from_bytes(source.read(4), "big"))
        if kind != CHUNK and writer >= 0:
            found = os.fstat(writer)
            stamps[path] = (found.st_ino, found.st_ctime_ns)
            os.close(writer)
            writer = -1
        if kind == FOLDER:
            os.mkdir(payload, 0o755)
        elif kind == FILE:
            path, mode = payload[1:], 0o755 if payload[:1] == b"x" else 0o644
            writer = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            os.fchmod(writer, mode)
        elif kind == CHUNK:
            while payload:
                payload = payload[os.write(writer, payload) :]
        elif kind == DONE:
            return stamps
        else:
            os._exit(1)  # the judge is gone


class _Run:
    """The command, from its start until nothing is left of it."""

    def __init__(self, spec: "Specification", began: float) -> None:
        self.outcome = 0
        self._deadline = began + spec["wall_s"]
        self._room = spec["output_bytes"]
        (out, their_out), (err, their_err) = os.pipe(), os.pipe()
        self._streams = {out: OUTPUT, err: ERRORS}
        wake, woken = os.pipe()
        for descriptor in (wake, woken):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken)
        self._poll = select.poll()
        for descriptor in (0, wake, out, err):
            self._poll.register(descriptor, select.POLLIN)
        self._wake = wake
        self._failure, failed = os.pipe()
        self._command = os.fork()
        if self._command == 0:
            _become(spec, failed, their_out, their_err)
        for descriptor in (failed, their_out, their_err):
            os.close(descriptor)
        _send(STARTED)

    def until_end(self) -> str:
        """Passes output on; what limit the command exceeded, or "-". Nothing runs afterwards."""
        exceeded = "-"
        while exceeded == "-" and not self._ended():
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                exceeded = "wall"
            elif not self._pass_on(left_s):
                exceeded = "output"
        self._end_all()
        while self._streams and exceeded != "output":  # what is in the pipes; all writers are gone
            if not self._pass_on(_END_S):
                exceeded = "output"
        if os.read(self._failure, 1):
            raise RuntimeError("the command did not start")
        return exceeded

    def _pass_on(self, wait_s: float) -> bool:
        """Sends what there is to read; False at the limit on output."""
        for descriptor, _ in self._poll.poll(wait_s * 1000):
            if descriptor == 0:
                if not os.read(0, _READ_BYTES):
                    os._exit(1)  # the judge is gone; the kernel ends the rest with us
            elif descriptor == self._wake:
                os.read(self._wake, _READ_BYTES)
            else:
                chunk = os.read(descriptor, _READ_BYTES)
                if not chunk:
                    self._poll.unregister(descriptor)
                    del self._streams[descriptor]
                    continue
                _send(self._streams[descriptor], chunk[: self._room])
                if len(chunk) > self._room:
                    return False
                self._room -= len(chunk)
        return True

    def _ended(self) -> bool:
        """Whether the command is gone; reaps whoever is left to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == self._command:
                self.outcome = os.waitstatus_to_exitcode(status)
                return True
            if pid == 0:
                return False

    def _end_all(self) -> None:
        """Kills everything but this process and waits until it is gone."""
        deadline = time.monotonic() + _END_S
        while True:
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                pass
            try:
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    if ended[0] == self._command:
                        self.outcome = os.waitstatus_to_exitcode(ended[1])
            except ChildProcessError:
                return
            if time.monotonic() > deadline:
                raise TimeoutError("a process does not end although it was killed")
            time.sleep(0.001)


def _become(spec: "Specification", failed: int, out: int, err: int) -> None:
    """The other half of a fork: becomes the command; never returns."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(out, 1)
    os.dup2(err, 2)
    prctl(SET_DUMPABLE, 1)  # or its own files in /proc would not be its own
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(_FIRST_TO_GO)
    except OSError:
        pass
    become_command(spec, failed)


class _Sender:
    """Sends the work folder: paths of folders and of single-link regular files, and contents.

    Files untouched since the filling and older than `since` (ns) are named only.
    """

    def __init__(self, room: int, stamps: "dict[bytes, tuple[int, int]]", since: int) -> None:
        self._room = room  # bytes that may come back: sparse files are larger than their disk use
        self._stamps = stamps
        self._since = since

    def send_folder(self, folder: bytes, prefix: bytes, depth: int) -> None:
        """Sends all that is in a folder; `prefix` is its path in the work folder, with a slash."""
        with os.scandir(folder) as entries:
            for entry in entries:
                path = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    if depth + 1 < MAX_DEPTH:
                        _send(FOLDER, path)
                        os.chmod(path, 0o700)  # as above
                        self.send_folder(path, path + b"/", depth + 1)
                elif entry.is_file(follow_symlinks=False):
                    self._send_file(path, entry.stat(follow_symlinks=False))

    def _send_file(self, path: bytes, found: os.stat_result) -> None:
        unchanged = self._stamps.get(path) == (found.st_ino, found.st_ctime_ns)
        if unchanged and found.st_ctime_ns < self._since:
            _send(KEPT, path)
            return
        self._room -= found.st_size
        if found.st_nlink != 1 or self._room < 0:
            return
        program = found.st_mode & 0o100
        if not found.st_mode & 0o400:
            os.chmod(path, 0o600)
        reader = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        _send(FILE, (b"x" if program else b"-") + path)
        while chunk := os.read(reader, CHUNK_BYTES):
            _send(CHUNK, chunk)
        os.close(reader)
