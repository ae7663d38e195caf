"""The workers of all GPUs: started once, kept warm between candidates, restarted when one fails."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pk_runtime.gpu.channel import Channel, pair
from pk_runtime.unicast import LOCAL
from sandbox.gpu.serve import Answer, ask_all, close_files

START_S = 120.0
HEALTH_S = 20.0
ANSWER_S = 60.0
_MOST_FILES = 16
_SHOWN = 2000
_ROOT = Path(__file__).resolve().parents[2]
# NVLink multicast stays off for baseline and candidate; nothing leaves the machine.
_ENVIRONMENT = (*(f"{name}={value}" for name, value in LOCAL.items()), "PYTHONDONTWRITEBYTECODE=1")


class WorkerFailed(RuntimeError):  # noqa: N818 - a state of the machine
    """A worker refused, ended or did not answer: never the candidate's fault. Names the GPU."""


class UnhealthyGpu(WorkerFailed):
    """A GPU fails its health check, also after the workers were started anew."""


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    channel: Channel
    log: Path


class GpuPool:
    """One worker per GPU. Used by one candidate at a time; `close` ends them all.

    `device` "cpu" makes workers without GPUs, with memory of the host: for tests of the judge.
    """

    def __init__(self, world_size: int, *, device: str = "cuda") -> None:
        self.world_size = world_size
        self.device = device
        self._folder = tempfile.TemporaryDirectory(prefix="pkforge-workers-")
        self._workers: list[_Worker] = []
        self._started = 0
        self._suspect = False
        self._abouts: list[dict[str, Any]] = []

    def ready(self) -> None:
        """Starts the workers, or after a failed candidate makes sure that the GPUs still work.

        Raises WorkerFailed, or UnhealthyGpu which names the GPU.
        """
        if self._workers and not self._suspect:
            return
        if self._workers:
            try:
                self.health()
                return
            except WorkerFailed:
                self._stop()
        self._start()
        try:
            self.health()
        except WorkerFailed as error:
            self._stop()
            raise UnhealthyGpu(f"a GPU does not work, also with new workers: {error}") from error

    def suspect(self) -> None:
        """The last candidate crashed or hung: the GPUs are checked before anything else runs."""
        self._suspect = True

    def health(self) -> None:
        """A small product on every GPU and an exchange between all; WorkerFailed names the GPU."""
        self.ask("health", timeout_s=HEALTH_S)
        self._suspect = False

    @property
    def generation(self) -> int:
        """How often the workers have been started: what they held before is gone."""
        return self._started

    def about(self) -> list[dict[str, Any]]:
        """What each worker says of its GPU and its libraries."""
        return self._abouts

    def ask(
        self,
        command: str,
        fields: Mapping[str, Any] | None = None,
        *,
        world: int | None = None,
        timeout_s: float = ANSWER_S,
    ) -> list[dict[str, Any]]:
        """One command to the first `world` workers; WorkerFailed unless all of them do it."""
        bodies, files = self.lend(command, fields, world=world, timeout_s=timeout_s)
        close_files(descriptor for each in files for descriptor in each)
        return bodies

    def lend(
        self,
        command: str,
        fields: Mapping[str, Any] | None = None,
        *,
        world: int | None = None,
        timeout_s: float = ANSWER_S,
        files: Sequence[Sequence[int]] | None = None,
    ) -> tuple[list[dict[str, Any]], list[tuple[int, ...]]]:
        """As `ask`, with the files that each worker sends; the caller closes them."""
        workers = self._workers[:world]
        if not workers:
            raise WorkerFailed("the workers are not running")
        answers = ask_all(
            [worker.channel for worker in workers],
            command,
            [dict(fields or {})] * len(workers),
            timeout_s=timeout_s,
            files=files,
            expect_files=_MOST_FILES,
            after_failure_s=5.0,
        )
        wrong = [(rank, answer) for rank, answer in enumerate(answers) if not answer.ok]
        if wrong:
            close_files(descriptor for answer in answers for descriptor in answer.files)
            rank, answer = wrong[0]
            text = self._explained(rank, command, answer)
            # After a refused collective, or silence, the others wait for a call that never comes.
            self._stop()
            raise WorkerFailed(text)
        return [dict(a.body or {}) for a in answers], [a.files for a in answers]

    def offer(
        self,
        command: str,
        fields: Mapping[str, Any],
        *,
        timeout_s: float = ANSWER_S,
    ) -> list[dict[str, Any]] | str:
        """As `ask` for what all workers may refuse for the same reason; then that reason."""
        answers = ask_all(
            [worker.channel for worker in self._workers],
            command,
            [dict(fields)] * len(self._workers),
            timeout_s=timeout_s,
        )
        if all(answer.failed is not None for answer in answers):
            return str(answers[0].failed)
        for rank, answer in enumerate(answers):
            if not answer.ok:
                text = self._explained(rank, command, answer)
                self._stop()
                raise WorkerFailed(text)
        return [dict(answer.body or {}) for answer in answers]

    def close(self) -> None:
        """Ends the workers."""
        self._stop()
        self._folder.cleanup()

    def _start(self) -> None:
        self._started += 1
        self._suspect = False
        store = Path(self._folder.name) / f"store-{self._started}"
        for rank in range(self.world_size):
            self._workers.append(self._launch(rank, store))
        self._abouts = self.ask("hello", timeout_s=START_S)

    def _launch(self, rank: int, store: Path) -> _Worker:
        ours, theirs = pair()
        log = Path(self._folder.name) / f"worker-{self._started}-{rank}.log"
        descriptor = theirs.detach()
        argv = [
            *("/usr/bin/env", *_ENVIRONMENT, sys.executable, "-m", "sandbox.gpu.worker"),
            *("--channel", str(descriptor), "--rank", str(rank)),
            *("--world", str(self.world_size), "--store", str(store), "--device", self.device),
        ]
        with log.open("wb") as output:
            try:
                process = subprocess.Popen(
                    argv, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    pass_fds=(descriptor,), start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                ours.close()
                raise WorkerFailed(f"the worker of GPU {rank} cannot be started: {error}") from None
            finally:
                close_files((descriptor,))
        return _Worker(process, ours, log)

    def _stop(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.channel.close()
            worker.process.kill()
        for worker in workers:
            worker.process.wait()

    def _explained(self, rank: int, command: str, answer: Answer) -> str:
        worker = self._workers[rank]
        gpu = f"GPU {rank}" if self.device == "cuda" else f"worker {rank}"
        if answer.failed is not None:
            return f"{gpu}: {command}: {answer.failed}"
        if worker.process.poll() is None:
            time.sleep(0.2)  # one that is just ending
        code = worker.process.poll()
        state = "does not answer" if code is None else f"ended with code {code}"
        tail = worker.log.read_bytes()[-_SHOWN:].decode(errors="replace").strip()
        said = tail.splitlines()[-6:]
        return f"{gpu}: its worker {state} ({command}). {' | '.join(said)}".strip()
