"""What pkforge needs from the machine: looked at by `/readyz` and explained by `pkforge doctor`."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from pk_runtime.execution import Command, ExecutionError, Limits, LocalExecutor
from pk_runtime.target import all_targets
from sandbox.gpu.machine import unavailable
from sandbox.isolation import (
    IsolatedExecutor,
    IsolationUnavailable,
    backends,
    choose,
    look_at,
)
from store.artifacts import Artifacts
from store.database import Database
from store.settings import Settings

# A job's build cache and artifacts stay far below this; under it, writes begin to fail.
LEAST_FREE_BYTES = 1 << 30

_PROBE_LIMITS = Limits(wall_s=20.0, memory_bytes=1 << 30)
# How long an outcome of the sandbox's suite counts.
_ISOLATION_KEPT_S = 60.0
_PATH = "/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Check:
    """One thing looked at. `fix` is what a person can do; None when there is nothing to do."""

    name: str
    ok: bool
    detail: str
    fix: str | None = None
    required: bool = True


class Readiness:
    """What a running service needs to take and run jobs.

    The sandbox's suite starts a dozen hostile programs, so its outcome is kept for a while.
    """

    def __init__(self, settings: Settings, database: Database, artifacts: Artifacts) -> None:
        self._settings = settings
        self._database = database
        self._artifacts = artifacts
        self._lock = threading.Lock()
        self._isolation: Check | None = None
        self._looked_at = 0.0

    def checks(self) -> list[Check]:
        """Look at everything, in order."""
        checks = [
            check_database(self._database),
            check_artifacts(self._artifacts),
            check_disk(self._settings.home),
        ]
        # With a broker the candidates run on other machines, which look after themselves.
        if self._settings.embedded:
            checks.append(self._isolation_now())
        return checks

    def _isolation_now(self) -> Check:
        with self._lock:
            now = time.monotonic()
            if self._isolation is None or now - self._looked_at > _ISOLATION_KEPT_S:
                self._isolation = check_isolation(self._settings)
                self._looked_at = now
            return self._isolation


def examine(settings: Settings) -> list[Check]:
    """Everything `pkforge doctor` looks at on this machine."""
    return [
        check_torch(),
        check_compiler(),
        *check_backends(settings),
        check_nvcc(),
        check_gpus(),
        check_home(settings),
        check_disk(settings.home),
    ]


def check_database(database: Database) -> Check:
    """At the newest schema and writable."""
    trouble = database.trouble()
    if trouble is None:
        return Check("database", True, f"{database} is current and writable")
    return Check("database", False, trouble, "correct PKFORGE_DATABASE_URL, or restart the service")


def check_artifacts(artifacts: Artifacts) -> Check:
    """The folder of artifacts takes files."""
    return _writable("artifacts", artifacts.root, "PKFORGE_ARTIFACTS")


def check_disk(home: Path) -> Check:
    """Enough free space where everything is kept."""
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{free / 2**30:.1f} GiB free in {existing}"
    if free >= LEAST_FREE_BYTES:
        return Check("disk", True, detail)
    least = LEAST_FREE_BYTES / 2**30
    fix = f"free some space there ({least:g} GiB at least), or point PKFORGE_HOME elsewhere"
    return Check("disk", False, detail, fix)


def check_isolation(settings: Settings) -> Check:
    """Untrusted code is really confined: runs the sandbox's hostile mini-suite (about a second)."""
    try:
        executor = choose(
            allow_none=settings.allow_no_isolation,
            choice=settings.isolation,
            docker_host=settings.docker_host,
        )
    except IsolationUnavailable as error:
        return Check("isolation", False, error.reason, error.fix)
    except (ExecutionError, OSError) as error:
        return _broken("isolation", error)
    return _holding(executor)


def check_backends(settings: Settings) -> list[Check]:
    """The mini-suite on each back end of the sandbox, then whether candidates can be judged."""
    if settings.allow_no_isolation:
        return [check_isolation(settings)]
    checks: list[Check] = []
    strongest: IsolatedExecutor | None = None
    for name, maker in backends(settings.isolation, settings.docker_host).items():
        try:
            look = look_at(maker)
        except (ExecutionError, OSError) as error:
            checks.append(replace(_broken(name, error), required=False))
            continue
        if look.executor is None:
            checks.append(Check(name, False, look.reason, look.fix, required=False))
            continue
        strongest = strongest or look.executor
        backend = look.executor.capabilities().backend
        checks.append(Check(name, True, f"{backend} holds against the hostile mini-suite"))
    if strongest is not None:
        return [*checks, _holding(strongest)]
    reason = "no back end of the sandbox holds on this machine; see the lines above"
    fix = next(check.fix for check in reversed(checks))
    return [*checks, Check("isolation", False, reason, fix)]


def _holding(executor: IsolatedExecutor) -> Check:
    report = executor.capabilities()
    if not report.isolated:
        detail = "candidates run WITHOUT a sandbox, as asked for; every verdict says so"
        return Check("isolation", True, detail, "leave out --no-isolation to isolate them")
    detail = f"{report.backend} holds against the hostile mini-suite; memory: {report.memory}"
    return Check("isolation", True, detail)


def _broken(name: str, error: Exception) -> Check:
    fix = "run `pkforge doctor` again as the same user; if it stays, report it with this line"
    return Check(name, False, f"the sandbox cannot be tried: {error}", fix)


def check_torch() -> Check:
    """torch can be imported."""
    try:
        import torch
    except ImportError as error:
        return Check("torch", False, str(error), "pip install torch (the CPU build is enough)")
    gpus = torch.cuda.device_count()
    return Check("torch", True, f"{torch.__version__}, {gpus} GPUs")


def check_compiler() -> Check:
    """g++ for the simulator, with C++20."""
    return _program(
        "g++", ("g++", "-dumpfullversion"), "apt-get install g++ (12 or newer)", required=True
    )


def check_nvcc() -> Check:
    """nvcc builds the same source for GPUs; simulated targets do without."""
    fix = "install the CUDA toolkit 13 to build for GPUs; simulated targets need none"
    return _program("nvcc", ("nvcc", "--version"), fix, required=False)


def check_gpus() -> Check:
    """Which cuda: targets this machine can judge on."""
    targets = [target for target in all_targets() if target.backend == "cuda"]
    reasons = {str(target): unavailable(target) for target in targets}
    ready = [name for name, reason in reasons.items() if reason is None]
    if ready:
        return Check("gpus", True, f"{', '.join(ready)} can be judged on here", None, False)
    name, reason = next(iter(reasons.items()))
    fix = "kernels are timed on a machine with those GPUs; simulated targets need none"
    return Check("gpus", False, f"{name}: {reason}", fix, False)


def check_home(settings: Settings) -> Check:
    """The database can be opened, or made at the first start."""
    made = _writable("database", settings.home, "PKFORGE_HOME")
    sqlite = settings.database_url.startswith("sqlite")
    if sqlite and (not made.ok or not (settings.home / "pkforge.db").exists()):
        return made
    database = Database(settings.database_url)
    try:
        return check_database(database)
    finally:
        database.close()


def _program(name: str, argv: tuple[str, ...], fix: str, *, required: bool) -> Check:
    path = shutil.which(argv[0], path=_PATH)
    if path is None:
        return Check(name, False, f"there is no {argv[0]} in {_PATH}", fix, required)
    try:
        command = Command((path, *argv[1:]), Path("/"), (), {"PATH": _PATH}, _PROBE_LIMITS)
        ended = LocalExecutor().run(command)
    except ExecutionError as error:
        return Check(name, False, str(error), fix, required)
    lines = ended.stdout.decode(errors="replace").split("\n")
    said = next((line for line in reversed(lines) if line.strip()), "it says nothing")
    if not ended.ok:
        return Check(name, False, f"{path} does not run", fix, required)
    return Check(name, True, f"{said.strip()} at {path}", None, required)


def _writable(name: str, folder: Path, setting: str) -> Check:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe-") as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        fix = f"make it writable for this user, or point {setting} elsewhere"
        return Check(name, False, f"{folder} cannot be written: {error.strerror}", fix)
    return Check(name, True, f"{folder} can be written")


def all_required_ok(checks: list[Check]) -> bool:
    """Whether nothing that is required is missing."""
    return all(check.ok for check in checks if check.required)
