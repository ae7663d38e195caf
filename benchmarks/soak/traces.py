"""What evaluations could leave behind, counted before and after to find leaks."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_MIB = 1 << 20
_INSIDE_UID = 65534  # whom sandboxes run as


def count(folder: Path, docker_host: str = "") -> dict[str, float]:
    """What this process and its evaluations hold, by name; amounts in MiB where said.

    `folder` is where all judges and programs put their files, /tmp included. Processes are this
    one's descendants, and those of the sandbox's user that nobody owns any more.
    """
    at = ("--host", docker_host) if docker_host else ()
    return {
        "processes": _processes(),
        "file descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "memory, MiB": _resident_mib(),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "control groups": _groups(),
        "files of runs": sum(_files(path) for path in folder.glob("**/runs")),
        "temporary files": _files(folder / "tmp"),
        "disk, MiB": _used_mib(folder),
        "containers": len(
            _asked("docker", *at, "ps", "--all", "--quiet", "--filter", "label=pkforge.judge")
        ),
        "GPU memory, MiB": sum(
            map(
                float,
                _asked("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"),
            )
        ),
    }


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What there is more of than before, and by how much."""
    return {name: after[name] - before[name] for name in before if after[name] > before[name]}


def _processes() -> int:
    parents, strays = {}, 0
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            owner = Path(f"/proc/{pid}").stat().st_uid
        except (OSError, ValueError):
            continue  # it has ended meanwhile
        parents[pid] = parent
        strays += parent == 1 and owner == _INSIDE_UID
    return strays + sum(_descends(pid, parents) for pid in parents)


def _descends(pid: int, parents: Mapping[int, int]) -> bool:
    while (pid := parents.get(pid, 0)) > 0:
        if pid == os.getpid():
            return True
    return False


def _resident_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _groups() -> int:
    prefix = f"pkforge-{os.getpid()}-"
    return sum(
        name.startswith(prefix) for _, names, _ in os.walk("/sys/fs/cgroup") for name in names
    )


def _files(folder: Path) -> int:
    return sum(1 for _ in folder.rglob("*"))


def _used_mib(folder: Path) -> float:
    used = 0
    for path in folder.rglob("*"):
        try:
            used += path.lstat().st_blocks * 512
        except OSError:
            continue  # removed meanwhile
    return used / _MIB


def _asked(*command: str) -> list[str]:
    program = shutil.which(command[0])
    if program is None:
        return []
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, timeout=30)
    return done.stdout.split() if done.returncode == 0 else []
