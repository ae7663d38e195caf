"""What machine this is: hardware, driver, versions, clocks now."""

import platform
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from pk_runtime.execution import Command, ExecutionError, Limits, LocalExecutor

_LIMITS = Limits(wall_s=15, memory_bytes=1 << 30)
_PATH = "/usr/local/nvidia/bin:/usr/local/bin:/usr/bin:/bin"
_LIBRARIES = "/usr/local/nvidia/lib64:/usr/local/nvidia/lib"


def describe(world: int) -> dict[str, Any]:
    """The first `world` GPUs, the driver and the versions of what was measured with."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpus": [torch.cuda.get_device_name(d) for d in range(world)],
        "world_size": world,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "sms": properties.multi_processor_count,
        "smem_bytes_per_sm": int(getattr(properties, "shared_memory_per_block_optin", 0)),
        "l2_bytes": int(getattr(properties, "L2_cache_size", 0)),
        "hbm_bytes": int(properties.total_memory),
        "driver": (query("driver_version") or ["unknown"])[0],
        "cuda": str(torch.version.cuda),
        "torch": str(torch.__version__),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "clocks_mhz": _numbers(query("clocks.sm")[:world]),
        "max_clocks_mhz": _numbers(query("clocks.max.sm")[:world]),
        "power_limit_w": _numbers(query("power.limit")[:world]),
    }


def query(fields: str) -> list[str]:
    """One line per GPU of `nvidia-smi --query-gpu`; none where that does not work."""
    program = shutil.which("nvidia-smi", path=_PATH) or shutil.which("nvidia-smi")
    if program is None:
        return []
    argv = (program, f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    env = {"PATH": _PATH, "LC_ALL": "C", "LD_LIBRARY_PATH": _LIBRARIES}
    try:
        with tempfile.TemporaryDirectory() as folder:
            done = LocalExecutor().run(Command(argv, Path(folder), (), env, _LIMITS))
    except ExecutionError:
        return []
    return [line.strip() for line in done.stdout.decode(errors="replace").splitlines()]


def _numbers(texts: list[str]) -> list[float | None]:
    found: list[float | None] = []
    for text in texts:
        try:
            found.append(float(text))
        except ValueError:
            found.append(None)
    return found
