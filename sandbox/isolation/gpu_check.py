"""Shows on a machine with GPUs that its sandbox holds and that CUDA works inside it.

    python3 -m sandbox.isolation.gpu_check [NUMBER OF GPUS]

Standard library only; under 40 seconds. One line for each check, OK or FAILED with the reason; the
exit code is 0 only if all are OK. Where CUDA works outside the sandbox and not inside, the check is
repeated with one restriction less at a time, to name the one that is in the way.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from pk_runtime.execution import Command, Limits
from sandbox.isolation import gpu, seccomp
from sandbox.isolation.base import IsolationUnavailable
from sandbox.isolation.interpreter import interpreter_paths
from sandbox.isolation.namespaces import NamespaceExecutor
from sandbox.isolation.probe import probe
from sandbox.isolation.session import Session

_ANSWER_S = 14.0
_LIMITS = Limits(30.0, 8 << 30, processes=128, output_bytes=1 << 20, file_bytes=64 << 20)
_ALL_S = 38.0
_SOURCE = Path(__file__).with_name("gpu_probe.py")
_ARGV = (sys.executable, "-I", "-S", "-c")
_LINE_BYTES = 1 << 16

Answer = dict[str, Any]


class Failed(Exception):  # noqa: N818 - an outcome of a check
    """A check did not find what it must; the message is its reason."""


class Refused(Failed):
    """The driver answered, and said no."""


class Talk:
    """The judge's end of a channel to `gpu_probe`, each answer with a deadline."""

    def __init__(self, channel: socket.socket, told: Callable[[], str]) -> None:
        self._channel = channel
        self._told = told
        channel.settimeout(_ANSWER_S)

    def ask(self, do: str, device: int, **more: Any) -> tuple[Answer, list[int]]:
        """One request and its answer with the descriptors that came along; Failed without one."""
        descriptors = more.pop("descriptors", [])
        request = json.dumps({"do": do, "device": device, **more}).encode()
        try:
            socket.send_fds(self._channel, [request], descriptors)
            text, received, _, _ = socket.recv_fds(self._channel, _LINE_BYTES, 1)
        except TimeoutError:
            raise Failed(f"no answer to {do!r} within {_ANSWER_S:g} s; {self._told()}") from None
        except OSError as error:
            raise Failed(f"the channel broke: {error}; {self._told()}") from error
        if not text:
            raise Failed(f"the process ended without an answer; {self._told()}")
        answer = json.loads(text)
        if not answer["ok"]:
            raise Refused(_refusal(answer))
        return answer, received


def _refusal(answer: Answer) -> str:
    code = f" returned {answer['code']} {answer['name']}" if answer["name"] else ""
    number = f", errno {answer['errno']}" if "errno" in answer else ""
    return f"{answer['call']}{code}{number} [{'; '.join(answer['hints'])}]"


# --- where a probe runs -------------------------------------------------------------------------


@contextmanager
def outside() -> Iterator[Talk]:
    """The probe as a plain process: shows what the machine can do without a sandbox."""
    ours, theirs = socket.socketpair()
    # The probe finds its channel as descriptor 3, as in a sandbox.
    move = "import os, sys; os.dup2(int(sys.argv[1]), 3); exec(sys.argv[2])"
    with ours, tempfile.TemporaryFile() as stderr:
        with theirs:
            process = subprocess.Popen(
                [*_ARGV, move, str(theirs.fileno()), _SOURCE.read_text()],
                env=gpu.gpu_environment(),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
            )

        def told() -> str:
            stderr.seek(0)
            return stderr.read().decode(errors="replace").strip()[-300:]

        try:
            yield Talk(ours, told)
        finally:
            process.kill()
            process.wait()


@contextmanager
def inside(
    executor: NamespaceExecutor, devices: Sequence[Path], read_only: Sequence[Path] = ()
) -> Iterator[tuple[Talk, Session]]:
    """The probe in a session of its own."""
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryDirectory(prefix="pkforge-gpu-") as folder:
        command = Command(
            (*_ARGV, _SOURCE.read_text(), folder),
            Path(folder),
            (*interpreter_paths(), *read_only),
            gpu.gpu_environment(),
            _LIMITS,
        )
        with executor.start(command, channel=theirs, devices=devices) as session:

            def told() -> str:
                with suppress(TimeoutError):
                    done = session.wait(0.5)
                    text = done.stderr.decode(errors="replace").strip()[-300:]
                    return (f"exit code {done.exit_code}, signal {done.signal}, "
                            f"exceeded {done.exceeded}: {text}")  # fmt: skip
                return f"it still runs: {_whereabouts(folder)}"

            yield Talk(ours, told), session


def _whereabouts(marker: str) -> str:
    """What the kernel says of each thread of the process with a marker in its command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (
                process.name == str(os.getpid())
                or marker.encode() not in (process / "cmdline").read_bytes()
            ):
                continue
            for task in (process / "task").iterdir():
                where, call = ((task / name).read_text().strip() for name in ("wchan", "syscall"))
                found.append(f"thread {task.name} waits in {where}, system call {call[:60]}")
    return "; ".join(found[:4]) or "nothing can be seen of it"


# --- the checks -----------------------------------------------------------------------------------


class Checks:
    """Runs checks one by one or side by side, and prints a line for each."""

    def __init__(self) -> None:
        self.failed = 0
        self._lock = threading.Lock()

    def check(self, name: str, action: Callable[[], str]) -> bool:
        """Runs one check; whatever it raises is its failure."""
        started = time.monotonic()
        try:
            word, detail = "OK", action()
        except Exception as error:  # noqa: BLE001 - each check stands alone
            said = str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
            word, detail = "FAILED", said
        with self._lock:
            self.failed += word == "FAILED"
            _say(f"{word:<7} {name}: {detail} ({time.monotonic() - started:.1f} s)")
        return word == "OK"

    def together(self, checks: Sequence[tuple[str, Callable[[], str]]]) -> bool:
        """Runs checks side by side."""
        outcome: list[bool] = []
        threads = [threading.Thread(target=lambda c=c: outcome.append(self.check(*c)), daemon=True)
                   for c in checks]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return all(outcome)


def hostile(executor: NamespaceExecutor) -> str:
    """The start-up check of the sandbox."""
    found = probe(executor)
    broken = [f"{finding.name}: {finding.detail}" for finding in found if not finding.ok]
    if broken:
        raise Failed("; ".join(broken))
    return f"{len(found)} attempts, each denied or allowed as it must be"


def works(talk: Talk, device: int) -> str:
    """1 MiB of a device set and copied back."""
    answer, _ = talk.ask("memory", device)
    return f"GPU {device} of {answer['devices']}, {answer['name']}, CUDA {answer['cuda']}"


def rank(
    executor: NamespaceExecutor,
    devices: Sequence[Path],
    device: int,
    exporter: Talk,
    turn: threading.Lock,
) -> str:
    """CUDA in a session, memory of a process outside mapped in it, and its end by force."""
    with inside(executor, devices) as (talk, session):
        said = works(talk, device)
        with turn:
            exported, descriptors = exporter.ask("export", 0)
        with ExitStack() as stack:
            for descriptor in descriptors:
                stack.callback(os.close, descriptor)
            talk.ask("import", device, bytes=exported["bytes"], descriptors=descriptors)
        started = time.monotonic()
        session.kill()
        ended = time.monotonic() - started
        return f"{said}; reads memory exported outside; killed in {ended:.2f} s"


def nothing_without_devices(executor: NamespaceExecutor) -> str:
    """The same with the driver's libraries, but without device nodes, must fail."""
    try:
        with inside(executor, (), gpu.gpu_paths()) as (talk, _):
            talk.ask("memory", 0)
    except Refused as refused:
        return f"refused as it must be: {str(refused).split(' [')[0]}"
    raise Failed("CUDA works without any device node: the sandbox does not hide GPUs")


def fewer(executor: NamespaceExecutor) -> str:
    """With the node of one GPU, CUDA sees one."""
    with inside(executor, gpu.gpu_devices(1)) as (talk, _):
        answer, _ = talk.ask("memory", 0)
        if answer["devices"] != 1:
            raise Failed(f"CUDA counts {answer['devices']} devices")
    return "one device node, one GPU"


class _Unfiltered(NamespaceExecutor):
    """For finding faults only: no system call filter."""

    def __init__(self) -> None:
        super().__init__()
        self._filter = seccomp.allowing_all()


def driver_nodes() -> list[Path]:
    """Every node that the driver has made, also those that sessions are not given."""
    nodes = [path for path in Path("/dev").glob("nvidia*") if not path.is_dir()]
    return [*nodes, *Path("/dev").glob("nvidia-caps*/*")]


def search(executor: NamespaceExecutor, devices: Sequence[Path], checks: Checks) -> None:
    """Repeats the check of GPU 0 with one restriction less at a time."""
    nodes = driver_nodes()
    everything = [Path(name) for name in ("/sys", "/etc", "/run", "/var") if Path(name).is_dir()]

    def attempt(
        who: NamespaceExecutor, nodes: Sequence[Path], read_only: Sequence[Path] = ()
    ) -> Callable[[], str]:
        def action() -> str:
            with inside(who, nodes, read_only) as (talk, _):
                return f"{works(talk, 0)}: this restriction was in the way"

        return action

    checks.together([
        ("search: without the system call filter", attempt(_Unfiltered(), devices)),
        ("search: with every device node of the driver", attempt(executor, nodes)),
        ("search: with /sys, /etc, /run and /var", attempt(executor, devices, everything)),
        ("search: with all of these", attempt(_Unfiltered(), nodes, everything)),
    ])  # fmt: skip


def describe(world_size: int) -> str:
    """The device nodes and the driver's library that sessions will see."""
    devices = [str(path) for path in gpu.gpu_devices(world_size)]
    library = gpu.driver_library()
    if library is None:
        raise Failed(f"there is no {gpu.DRIVER} on this machine: install the NVIDIA driver")
    more = [*map(str, gpu.gpu_paths()), *(f"{k}={v}" for k, v in gpu.gpu_environment().items())]
    return " ".join([*devices, str(library), *more])


def main(arguments: Sequence[str]) -> int:
    """Runs all checks; the exit code."""
    checks, executors = Checks(), []

    def make() -> str:
        executors.append(NamespaceExecutor())
        return "; ".join(f"{k}: {v}" for k, v in executors[0].capabilities().to_dict().items())

    if not checks.check("the sandbox can be made", make):
        return 1
    executor = executors[0]
    checks.check("the hostile suite", lambda: hostile(executor))
    if not checks.check("the driver is here", lambda: describe(1)):
        return 1
    count = int(arguments[0]) if arguments else gpu.count_gpus()
    devices = gpu.gpu_devices(count)
    with outside() as exporter:
        if not checks.check("outside the sandbox", lambda: works(exporter, 0)):
            return 1
        turn = threading.Lock()
        ranks: list[tuple[str, Callable[[], str]]] = [
            (f"rank {device} in a sandbox",
             partial(rank, executor, devices, device, exporter, turn))
            for device in range(count)
        ]  # fmt: skip
        ranks.append(("without device nodes", lambda: nothing_without_devices(executor)))
        if not checks.together(ranks):
            search(executor, devices, checks)
        elif count > 1:
            checks.check("fewer devices", lambda: fewer(executor))
    _say("all checks are OK" if checks.failed == 0 else f"{checks.failed} checks FAILED")
    return 0 if checks.failed == 0 else 1


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _too_late() -> None:
    """Ends this process, and with it every sandbox."""
    _say(f"FAILED to finish within {_ALL_S:g} s: what has no line above is what hangs")
    os._exit(1)


if __name__ == "__main__":
    alarm = threading.Timer(_ALL_S, _too_late)
    alarm.daemon = True
    alarm.start()
    try:
        raise SystemExit(main(sys.argv[1:]))
    except (gpu.NoGpu, IsolationUnavailable) as error:
        raise SystemExit(f"FAILED {error}") from error
