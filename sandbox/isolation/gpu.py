"""What a sandbox must see of this machine so that a CUDA program runs in it."""

import re
import subprocess
from functools import cache
from pathlib import Path

from pk_runtime.execution import ExecutionError

DRIVER = "libcuda.so.1"

_DEVICES = Path("/dev")
_CONTROL = ("nvidiactl", "nvidia-uvm")
_NODE = re.compile(r"nvidia(\d+)")
_LDCONFIG = ("/sbin/ldconfig", "/usr/sbin/ldconfig")
_LDCONFIG_S = 10.0
# Where container tools, distributions and the Windows subsystem put the driver.
_KNOWN_FOLDERS = tuple(
    Path(name)
    for name in ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/x86_64-linux-gnu",
                 "/usr/lib64", "/usr/lib64/nvidia", "/usr/lib/wsl/lib", "/run/opengl-driver/lib",
                 "/usr/local/cuda/compat")
)  # fmt: skip
_SYSTEM = tuple(
    Path("/sys", name) for name in ("devices", "bus/pci", "class", "module/nvidia", "dev/char")
)
_ALWAYS_VISIBLE = Path("/usr")


class NoGpu(ExecutionError):  # noqa: N818 - a state of the machine, not a mistake
    """This machine has not the GPUs, or not the driver, that were asked for."""


def gpu_devices(world_size: int, folder: Path = _DEVICES) -> tuple[Path, ...]:
    """The device nodes for the first `world_size` GPUs: the driver's two, then one each.

    Raises NoGpu with what is missing and what to do.
    """
    numbers = _numbers(folder)
    if len(numbers) < world_size:
        raise NoGpu(
            f"{world_size} GPUs are wanted and {folder} has {len(numbers)} "
            "(nvidia0, nvidia1, ...): use a machine with enough GPUs, or a simulated target"
        )
    for name in _CONTROL:
        if not (folder / name).exists():
            raise NoGpu(
                f"{folder / name} is missing: load the driver's modules (run nvidia-smi once as "
                "root, or nvidia-modprobe -u -c=0), in a container pass the device on"
            )
    nodes = [f"nvidia{number}" for number in numbers[:world_size]]
    return tuple(folder / name for name in (*_CONTROL, *nodes))


def count_gpus(folder: Path = _DEVICES) -> int:
    """How many GPUs have a device node; 0 where there is no driver."""
    return len(_numbers(folder))


def _numbers(folder: Path) -> list[int]:
    names = (_NODE.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in names if match)


@cache
def driver_library() -> Path | None:
    """Where libcuda.so.1 is, or None. Asks the loader's cache, then looks in the known places."""
    listed = [path for path in _loader_cache() if path.name == DRIVER]
    known = [folder / DRIVER for folder in _KNOWN_FOLDERS]
    return next((path for path in (*listed, *known) if path.exists()), None)


def gpu_paths() -> tuple[Path, ...]:
    """Folders with the driver's libraries that a sandbox does not see anyway; () without driver."""
    library = driver_library()
    if library is None:
        return ()
    folders = {library.parent, library.resolve().parent}
    return tuple(sorted(f for f in folders if not f.is_relative_to(_ALWAYS_VISIBLE)))


def gpu_environment() -> dict[str, str]:
    """What leads the loader to the driver where its cache does not; {} otherwise."""
    library = driver_library()
    if library is None or library in _loader_cache():
        return {}
    return {"LD_LIBRARY_PATH": str(library.parent)}


def system_paths() -> tuple[str, ...]:
    """The parts of /sys in which the driver's library looks up GPUs and processors."""
    return tuple(str(path) for path in _SYSTEM if path.exists())


@cache
def _loader_cache() -> tuple[Path, ...]:
    """The 64-bit libraries that the loader finds by name."""
    program = next((name for name in _LDCONFIG if Path(name).exists()), None)
    if program is None:
        return ()
    try:
        text = subprocess.run([program, "-p"], capture_output=True, text=True, env={}, check=True,
                              timeout=_LDCONFIG_S).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(Path(line.split(" => ")[1]) for line in text.splitlines()
                 if " => " in line and "x86-64" in line)  # fmt: skip
