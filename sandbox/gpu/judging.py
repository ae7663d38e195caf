"""The stages of a judgement on GPUs, from source to timings. Owned by the judge, closed with it."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import Compiler
from pk_runtime.execution import ExecutionError, Executor
from pk_runtime.simulator import Simulator
from pk_runtime.target import Target
from problems.description import Description
from problems.hosting import ProblemHost
from sandbox.gpu import aftermath, device, machine
from sandbox.gpu.aftermath import Quarantine
from sandbox.gpu.bench import Bench
from sandbox.gpu.check import Check, plan
from sandbox.gpu.group import START_S, GroupEnded, RunnerGroup, Starter, sandboxed, unprotected
from sandbox.gpu.lease import lease
from sandbox.gpu.pool import GpuPool, WorkerFailed
from sandbox.gpu.serve import close_files
from sandbox.isolation import (
    IsolationUnavailable,
    NamespaceExecutor,
    UnisolatedExecutor,
    choose_for_sessions,
)
from sandbox.stages import Progress, StageFailed
from sandbox.stages import check as simulated
from sandbox.stages.build import build
from sandbox.stages.plan import plan as simulated_plan
from sandbox.verdict import Depth, Timing

# Every single wait of a kernel; nothing a healthy kernel waits for takes a thousandth of this.
WAIT_S = 2.0
_MEETING = "meeting"
# Failures of a candidate after which the GPUs are looked at before anything else runs on them.
_HARD = ("crashed", "deadlock", "timeout", "race")


class GpuJudging:
    """Judges candidates on this machine's GPUs, one after the other; its workers stay warm."""

    def __init__(
        self, executor: Executor, compiler: Compiler, simulator: Simulator, workspace: Path
    ) -> None:
        self._executor = executor
        self._compiler = compiler
        self._simulator = simulator
        self._workspace = workspace
        self._pool: GpuPool | None = None
        self._introduced = 0
        self._starter: Starter | None = None
        self._quarantine = Quarantine(workspace.parent / "quarantined-gpus.json")

    def require(self, target: Target) -> None:
        """Raises TargetNotAvailable, with the reason, unless the target is this machine."""
        machine.require(target)
        if self._starter is None:
            self._starter = starter_for(self._executor, target)

    def stages(
        self,
        candidate: Candidate,
        target: Target,
        host: ProblemHost,
        shapes: Sequence[str],
        depth: Depth,
        seed: int,
        progress: Progress,
        incumbent: Candidate | None = None,
    ) -> tuple[dict[str, Any], tuple[Timing, ...]]:
        """Evidence and timings of a correct candidate; StageFailed for any other.

        An incumbent is timed by turns with it.
        """
        watch = Stopwatch()
        description = host.describe(target.world_size)
        pool = self._pool_of(target.world_size)
        with ThreadPoolExecutor(2) as threads:
            starting = threads.submit(pool.ready)
            with watch("build"):
                progress("build", {})
                building = threads.submit(self._built, candidate)
                if candidate.language == "pk":
                    self._simulated(candidate, target, host, depth, seed, progress)
                library, helpers = building.result()
                best = self._library_of(incumbent)
            with watch("start workers"):
                starting.result()
        with ExitStack() as held:
            with watch("wait for GPUs"):
                held.enter_context(lease())
            uuids = _uuids(pool)
            self._quarantine.refuse(uuids)
            before = aftermath.uses(uuids)
            try:
                return self._on_gpus(
                    pool, target, host, description, shapes, depth, seed, progress,
                    library, helpers, best, watch,
                )  # fmt: skip
            except StageFailed as failed:
                failed.evidence["seconds"] = watch.seconds
                if failed.status in _HARD:
                    failed.evidence["gpus"] = self._looked_at(pool, before)
                raise

    def close(self) -> None:
        """Ends the workers."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def versions(self) -> dict[str, str]:
        """What the verdict records of GPUs and libraries; {} before the workers run."""
        abouts = self._pool.about() if self._pool is not None else []
        if not abouts:
            return {}
        first = abouts[0]
        names = sorted({str(about.get("name")) for about in abouts})
        libraries = ("driver", "cuda", "nccl")
        known: dict[str, str] = {str(n): str(first[n]) for n in libraries if n in first}
        return {"gpus": f"{len(abouts)}x {', '.join(names)}", **known}

    def _on_gpus(
        self,
        pool: GpuPool,
        target: Target,
        host: ProblemHost,
        description: Description,
        shapes: Sequence[str],
        depth: Depth,
        seed: int,
        progress: Progress,
        library: Path,
        helpers: Path,
        best: Path | None,
        watch: "Stopwatch",
    ) -> tuple[dict[str, Any], tuple[Timing, ...]]:
        with watch("start ranks"):
            runners = self._started(pool, target, library, helpers)
        with runners:
            small_first = [s.name for s in description.shapes if s.kind == "check"]
            with watch("check"):
                check = Check(pool, runners, host, seed, progress)
                evidence = check.run(plan(depth, small_first, target.world_size))
            with watch("bench"), ExitStack() as held:
                beside = None
                if best is not None:
                    beside = held.enter_context(self._started(pool, target, best, helpers))
                bench = Bench(pool, runners, target.sheet, seed, progress, beside)
                timings = bench.run(description, shapes)
        return {**evidence, "seconds": watch.seconds}, timings

    def _built(self, candidate: Candidate) -> tuple[Path, Path]:
        """The candidate's library and the judge's own device code."""
        library = build(self._compiler, candidate, gpu=True)
        return library, self._compiler.library(device.source())

    def _library_of(self, incumbent: Candidate | None) -> Path | None:
        """The incumbent's library; None without one, or if it can no longer be built."""
        if incumbent is None:
            return None
        try:
            return self._built(incumbent)[0]
        except StageFailed:
            return None

    def _simulated(
        self,
        candidate: Candidate,
        target: Target,
        host: ProblemHost,
        depth: Depth,
        seed: int,
        progress: Progress,
    ) -> None:
        """The simulator's check on the smallest shape: it needs no GPU, and names races."""
        program = build(self._compiler, candidate)
        check = simulated.Check(program, self._simulator, host, target.sheet, seed, progress)
        names = [s.name for s in host.describe(target.world_size).shapes if s.kind == "check"]
        try:
            check.run(simulated_plan("quick", names, target.world_size))
        except StageFailed as failed:
            failed.evidence["found_by"] = "simulator"
            text = failed.evidence["summary"]
            failed.evidence["summary"] = f"In the simulator, before any GPU ran it: {text}"
            raise

    def _started(self, pool: GpuPool, target: Target, library: Path, helpers: Path) -> RunnerGroup:
        """Runners that have opened their GPUs; all of their failures up to here are the machine's.

        The kernel's library is only loaded when its first case is planned.
        """
        world = target.world_size
        starter = self._starter or starter_for(self._executor, target)
        if self._introduced != pool.generation:
            self._introduce(pool, helpers)
        # Fresh for every candidate: ranks that were stopped in a meeting leave it in disorder.
        meeting = self._lent(pool, _MEETING)
        runners = RunnerGroup(
            starter, world, self._workspace, read_only=(library.parent, helpers.parent),
            wait_s=WAIT_S,
        )  # fmt: skip
        try:
            common = {
                "library": str(library),
                "helpers": str(helpers),
                "meeting_bytes": device.MEETING_BYTES,
                "timeout_ms": int(WAIT_S * 1e3),
            }
            bodies = [{**common, "rank": rank, "device": rank} for rank in range(world)]
            started = runners.ask("start", bodies, timeout_s=START_S, files=meeting)
            _must_be_same_gpus([about.get("uuid") for about in pool.about()], started)
        except GroupEnded as ended:
            pool.suspect()
            outcome = next(o for o in ended.outcomes if o.ended != "answered")
            raise WorkerFailed(
                f"rank {outcome.rank} cannot open its GPU in the sandbox: "
                f"{outcome.error or outcome.ended} {outcome.said}".strip()
            ) from ended
        except BaseException:
            runners.close()
            raise
        finally:
            close_files(meeting)
        return runners

    def _introduce(self, pool: GpuPool, helpers: Path) -> None:
        """Gives the workers what they need to meet on the device."""
        memory = self._lent(pool, f"{_MEETING}-workers")
        try:
            told = {"nbytes": device.MEETING_BYTES, "helpers": str(helpers)}
            pool.lend("meet", told, files=[memory] * pool.world_size)
        finally:
            close_files(memory)
        self._introduced = pool.generation

    def _lent(self, pool: GpuPool, key: str) -> list[int]:
        """Memory for meetings, one file per rank."""
        fields = {"key": key, "nbytes": device.MEETING_BYTES}
        return [descriptor for each in pool.lend("lend", fields)[1] for descriptor in each]

    def _looked_at(self, pool: GpuPool, before: aftermath.Uses) -> str:
        """Whether the GPUs work after a candidate that failed, in words; if not, nothing more runs.

        They work when they run a kernel and nothing of the candidate is left on them.
        """
        uuids = _uuids(pool)
        pool.suspect()
        try:
            pool.ready()
        except WorkerFailed as error:
            self._quarantine.put(uuids, str(error))
            return f"quarantined: {error}"
        held = aftermath.left_over(before)
        for uuid, what in held.items():
            self._quarantine.put([uuid], what)
        if held:
            return "quarantined: " + "; ".join(f"{uuid}: {what}" for uuid, what in held.items())
        return "checked after it ended: healthy"

    def _pool_of(self, world_size: int) -> GpuPool:
        if self._pool is not None and self._pool.world_size != world_size:
            self.close()
        if self._pool is None:
            self._pool, self._introduced = GpuPool(world_size), 0
        return self._pool


def _uuids(pool: GpuPool) -> list[str]:
    return [str(about["uuid"]) for about in pool.about() if about.get("uuid")]


def _must_be_same_gpus(uuids: Sequence[object], started: Sequence[dict[str, Any]]) -> None:
    """Rank r of workers and runners must be on one GPU, however each of them numbers GPUs."""
    for rank, (ours, theirs) in enumerate(zip(uuids, started, strict=True)):
        if ours != theirs.get("uuid"):
            raise WorkerFailed(
                f"rank {rank} is on GPU {ours} for the judge and on {theirs.get('uuid')} in the "
                "sandbox: unset CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER"
            )


def starter_for(executor: Executor, target: Target) -> Starter:
    """How runners are started: as isolated as the executor; TargetNotAvailable if not."""
    if isinstance(executor, UnisolatedExecutor):
        return unprotected
    try:
        sessions = executor if isinstance(executor, NamespaceExecutor) else choose_for_sessions()
        return sandboxed(sessions, target.world_size)
    except (IsolationUnavailable, ExecutionError) as error:
        raise machine.TargetNotAvailable(
            f"{target}: candidates cannot be confined beside GPUs on this machine: {error}"
        ) from error


class Stopwatch:
    """Where the time goes: seconds by the name of what is done."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Adds the time of the block to `name`."""
        start = self._now()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + self._now() - start, 2)
