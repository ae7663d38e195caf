"""Self-check of a node with NVIDIA GPUs: `python -m pk_runtime.gpu.smoke [CHECK...]`.

One line per check, OK or FAILED with the reason; the exit code is 0 if all are OK. Every check runs
in processes of its own, one per rank, so that a failure hides nothing else; every wait has a
deadline, the whole takes less than a minute. Needs torch, nvcc and the driver; uses no multicast.
CHECKs are names from CHECKS below; all of them if none is given.
"""

import json
import os
import shutil
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pk_runtime.candidate import Candidate
from pk_runtime.execution import Command, Completed, Limits, LocalExecutor
from pk_runtime.gpu.driver import (
    NoDriverError,
    can_access_peer,
    capability,
    device_count,
    device_name,
    driver,
    driver_version,
    read,
)
from pk_runtime.gpu.memory import Allocation
from pk_runtime.gpu.rendezvous import new_run_folder
from pk_runtime.unicast import NO_MULTICAST

MOST_RANKS = 8
# Seconds that one check's processes may take once it is their turn and they are ready.
CHECKS = {
    "memory": 20.0,
    "kernel": 20.0,
    "graph": 20.0,
    "compiled": 45.0,
    "ipc": 15.0,
    "failure": 25.0,
    "again": 20.0,
    "distributed": 45.0,
}
SAME_AS = {"again": "kernel"}
WHAT = {
    "memory": "symmetric memory between processes",
    "kernel": "a kernel on all ranks",
    "graph": "CUDA graph, 100 replays",
    "compiled": "operator under torch.compile",
    "ipc": "users' tensors by CUDA IPC",
    "failure": "a dropped signal is reported",
    "again": "a fresh set of processes after it",
    "distributed": "bundle and dispatcher under torch.distributed",
}
_START_S = 40.0
_AHEAD = 2  # checks whose processes get ready while another one runs
_MEMORY_BYTES = 256 << 30
_TRACEBACK_LINES = 25

DROPPED_SIGNAL = """// Rank 1 forgets its signal, so every rank waits for it in vain.
#include <pk/pk.h>
using namespace pk;

struct dropped_signal {
  using block_tile = tile<bf16, 64, 64>;
  struct args {
    layout<bf16> x, y;
    signals ready;
  };
  struct shared { copy_ring<block_tile, 1> pipe; };
  static void setup(host& h, args& g) {
    h.input("x", g.x);
    h.output("y", g.y);
    h.signals("ready", g.ready, 1, h.world());
  }
  PK_ROLE loader(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.producer(self);
    for ([[maybe_unused]] int t : self.tasks(1)) {
      if (self.rank() != 1) signal_all(self, g.ready, 0);
      wait(self, g.ready, 0, self.world());
      block_tile& x = pipe.acquire();
      pipe.load(x, g.x, {0, 0});
      pipe.commit();
    }
  }
  PK_ROLE storer(issuer self, const args& g, shared& s) {
    auto pipe = s.pipe.consumer(self);
    for ([[maybe_unused]] int t : self.tasks(1)) {
      store_async(self, g.y, {0, 0}, pipe.wait());
      pipe.release();
    }
  }
};
PK_KERNEL(dropped_signal)
"""


@dataclass
class Report:
    """Prints one line per check and remembers whether all were good."""

    failed: int = 0

    def run(self, what: str, action: Callable[[], str]) -> bool:
        """Runs a check; what it returns is printed, what it raises is its failure."""
        begun = time.monotonic()
        try:
            detail, word = action(), "OK    "
        except Exception as error:  # noqa: BLE001 - a self-check reports everything
            detail, word = f"{type(error).__name__}: {error}", "FAILED"
            self.failed += 1
            if not isinstance(error, CheckError | NoDriverError):
                detail += "\n" + traceback.format_exc()
        _say(f"{word} {what}: {detail} ({time.monotonic() - begun:.1f} s)")
        return word.startswith("OK")


class CheckError(RuntimeError):
    """A check that failed in its own processes; the message holds their tracebacks."""


def main(chosen: list[str] | None = None) -> int:
    """Checks the node; returns the exit code. `chosen` names checks, all if empty."""
    if unknown := set(chosen or ()) - set(CHECKS):
        _say(f"no check {', '.join(sorted(unknown))}; known: {', '.join(CHECKS)}")
        return 2
    begun = time.monotonic()
    report = Report()
    if not report.run("driver and devices", _devices):
        return 1
    devices = device_count()
    world = min(max(devices, 2), MOST_RANKS)
    report.run("every GPU's memory can be exported", lambda: _exports(devices))
    checks = [check for check in CHECKS if not chosen or check in chosen]
    if devices < world and "distributed" in checks:
        checks.remove("distributed")  # NCCL wants a GPU for every rank
    with tempfile.TemporaryDirectory(prefix="pkforge-smoke-") as name:
        folder = Path(name)
        with ThreadPoolExecutor(world * (_AHEAD + 2) + 2) as pool:

            def start(check: str) -> list[Future[Completed]]:
                return [pool.submit(_rank, folder, check, r, world, devices) for r in range(world)]

            built = pool.submit(_libraries, folder)
            ranks = {check: start(check) for check in checks[:_AHEAD] if check not in SAME_AS}
            report.run("nvcc builds kernels", lambda: f"{len(built.result(120))} of them")
            libraries = built.result() if built.exception() is None else {}
            for number, check in enumerate(checks):
                # What follows a failure starts after it.
                for soon in checks[number : number + 1 + _AHEAD]:
                    if soon not in ranks and (soon not in SAME_AS or soon == check):
                        ranks[soon] = start(soon)
                own = ranks[check]
                report.run(WHAT[check], lambda c=check, o=own: _run(folder, c, libraries, o))  # type: ignore[misc]
    _say(f"{report.failed} checks failed, {time.monotonic() - begun:.1f} s, {world} ranks")
    return 1 if report.failed else 0


def _devices() -> str:
    count = device_count()
    if not count:
        raise CheckError("the driver sees no GPU")
    names = {f"{device_name(n)} (sm_{''.join(map(str, capability(n)))})" for n in range(count)}
    blocked = [
        f"{a} to {b}"
        for a in range(count)
        for b in range(count)
        if a != b and not can_access_peer(a, b)
    ]
    if blocked:
        raise CheckError(f"no peer access from device {', '.join(blocked)}")
    version = f"{driver_version() // 1000}.{driver_version() % 1000 // 10}"
    return f"{count} x {', '.join(sorted(names))}; driver for CUDA {version}"


def _exports(devices: int) -> str:
    for device in range(devices):
        driver(device)
        allocation = Allocation.create(device, 1)
        allocation.zero()
        os.close(allocation.export())
        if any(read(allocation.address, 4096)):
            raise CheckError(f"device {device}: zeroed memory is not zero")
        allocation.close()
    return f"pages of {allocation.nbytes >> 20} MiB on {devices} devices"


def _libraries(folder: Path) -> dict[str, str]:
    """Builds what the checks run. Only this part of the parent needs torch."""
    from pk_runtime.bundle import write_bundle
    from pk_runtime.compiler import Compiler
    from pk_runtime.gpu.smoke_rank import INTERFACE
    from pk_runtime.kernels import shipped_kernel

    bundle = folder / "bundle"
    bundle.mkdir()
    manifest = {
        "problem": "allreduce",
        "target": "cuda:h200x4",
        "verdict": {"status": "correct", "evidence": {"summary": ""}},
        "lineage": [],
        "interface": INTERFACE,
    }
    two_shot = shipped_kernel("allreduce_two_shot")
    write_bundle(bundle / "bundle.zip", two_shot, manifest)
    with zipfile.ZipFile(bundle / "bundle.zip") as archive:
        archive.extractall(bundle)
    compiler = Compiler(bundle / ".build" / "cache")
    candidates = {
        "all_reduce": two_shot,
        "dropped_signal": Candidate("pk", {"kernel.cu": DROPPED_SIGNAL}),
        "all_gather": shipped_kernel("allgather"),
        "all_to_all": shipped_kernel("alltoall"),
    }
    with ThreadPoolExecutor(len(candidates)) as pool:
        paths = pool.map(compiler.library, candidates.values())
        libraries = dict(zip(candidates, map(str, paths), strict=True))
    return {**libraries, "bundle": str(bundle)}


def _start_file(folder: Path, check: str) -> Path:
    return folder / f"{check}.start"


def _rank(folder: Path, check: str, rank: int, world: int, devices: int) -> Completed:
    """One process of a check: it gets ready at once, and waits for its turn."""
    arguments = (SAME_AS.get(check, check), str(rank), str(world), str(rank % devices))
    environment = {
        **os.environ,  # house: environment, the checks see the node as this process does
        **NO_MULTICAST,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    workdir = folder / f"{check}.{rank}"
    workdir.mkdir()
    argv = (sys.executable, "-m", "pk_runtime.gpu.smoke_rank", *arguments)
    limits = Limits(_START_S + sum(CHECKS.values()), _MEMORY_BYTES, file_bytes=8 << 30)
    start = str(_start_file(folder, check))
    return LocalExecutor().run(Command((*argv, start), workdir, (), environment, limits))


def _run(
    folder: Path, check: str, libraries: dict[str, str], ranks: list[Future[Completed]]
) -> str:
    """Lets a check's processes go and collects what they say."""
    run = new_run_folder()
    start = _start_file(folder, check)
    ready = start.with_suffix(".new")
    limit_s = CHECKS[check]
    told = {"run": str(run), "libraries": libraries, "limit_s": limit_s}
    ready.write_text(json.dumps(told))
    ready.rename(start)
    deadline = time.monotonic() + _START_S + limit_s
    details: list[str] = []
    problems: dict[str, list[int]] = {}
    for number, rank in enumerate(ranks):
        done: Completed | None = None
        try:
            done = rank.result(max(deadline - time.monotonic(), 0.1))
            said = json.loads(done.stdout.decode(errors="replace").strip().splitlines()[-1])
        except TimeoutError:
            said = {"ok": False, "detail": f"no end within {_START_S + limit_s:g} s"}
        except (IndexError, ValueError):
            said = {"ok": False, "detail": _ending(done)}
        if said["ok"]:
            details.append(said["detail"])
        else:
            problems.setdefault(f"{said['detail']}{_quoted(done)}", []).append(number)
    shutil.rmtree(run, ignore_errors=True)
    if problems:
        texts = (f"rank {', '.join(map(str, who))}: {text}" for text, who in problems.items())
        raise CheckError("\n  ".join(texts))
    return str(details[0])


def _ending(done: Completed | None) -> str:
    if done is None:
        return "nothing said"
    if done.exceeded:
        return f"stopped: too much {done.exceeded}"
    return f"ended by signal {done.signal}" if done.signal else f"exit code {done.exit_code}"


def _quoted(done: Completed | None) -> str:
    if done is None:
        return ""
    lines = done.stderr.decode(errors="replace").strip().splitlines()[-_TRACEBACK_LINES:]
    return "".join(f"\n      | {line}" for line in lines)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
