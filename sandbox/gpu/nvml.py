"""Clocks, temperature, power and traffic of a GPU, as NVML tells them. No torch here."""

import ctypes as c
import functools
from dataclasses import dataclass
from typing import Any

_LIBRARIES = (
    "libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib/libnvidia-ml.so.1",
)
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_GPU_TEMPERATURE = 0
_NO_ROOM = 7
# Fields of nvml.h: payload over NVLink in KiB, without protocol; all links of a GPU.
_NVLINK_SENT, _NVLINK_RECEIVED = 138, 139
_ALL_LINKS = 0xFFFFFFFF


def sample(uuid: str) -> dict[str, Any]:
    """SM and memory clock in MHz, degrees Celsius, watts and why clocks are held down (a bit mask).

    Whatever the driver does not tell is left out; {} without NVML.
    """
    library = _library()
    handle = c.c_void_p()
    if library is None or _ask(library, "nvmlDeviceGetHandleByUUID", uuid.encode(), handle):
        return {}
    found: dict[str, Any] = {}
    value, mask = c.c_uint(), c.c_ulonglong()
    for name, kind in (("sm_mhz", _SM_CLOCK), ("memory_mhz", _MEMORY_CLOCK)):
        if not _ask(library, "nvmlDeviceGetClockInfo", handle, kind, value):
            found[name] = value.value
    if not _ask(library, "nvmlDeviceGetTemperature", handle, _GPU_TEMPERATURE, value):
        found["celsius"] = value.value
    if not _ask(library, "nvmlDeviceGetPowerUsage", handle, value):
        found["watts"] = value.value / 1e3
    if not _ask(library, "nvmlDeviceGetCurrentClocksThrottleReasons", handle, mask):
        found["throttle_mask"] = mask.value
    return found


@dataclass(frozen=True)
class Use:
    """How many processes compute on a GPU, and the bytes of its memory that are in use."""

    processes: int
    memory_bytes: int


class _Memory(c.Structure):
    _fields_ = (("total", c.c_ulonglong), ("free", c.c_ulonglong), ("used", c.c_ulonglong))


def use(uuid: str) -> Use | None:
    """Who uses a GPU now; None where NVML does not tell."""
    library = _library()
    handle, memory, count = c.c_void_p(), _Memory(), c.c_uint(0)
    if library is None or _ask(library, "nvmlDeviceGetHandleByUUID", uuid.encode(), handle):
        return None
    if _ask(library, "nvmlDeviceGetMemoryInfo", handle, memory):
        return None
    # Without room for the list it gives the length, and says that there was no room.
    name = "nvmlDeviceGetComputeRunningProcesses_v3"
    if _ask(library, name, handle, count, None) not in (0, _NO_ROOM):
        return None
    return Use(count.value, memory.used)


class _Field(c.Structure):
    """nvmlFieldValue_t."""

    _fields_ = (
        ("field", c.c_uint), ("scope", c.c_uint), ("timestamp", c.c_longlong),
        ("latency_us", c.c_longlong), ("kind", c.c_int), ("error", c.c_int),
        ("value", c.c_ulonglong),
    )  # fmt: skip


def nvlink_bytes(uuid: str) -> tuple[int, int] | None:
    """Bytes that a GPU has sent and received over NVLink so far; None where NVML does not tell."""
    library = _library()
    handle = c.c_void_p()
    if library is None or _ask(library, "nvmlDeviceGetHandleByUUID", uuid.encode(), handle):
        return None
    fields = (_Field * 2)(
        _Field(field=_NVLINK_SENT, scope=_ALL_LINKS),
        _Field(field=_NVLINK_RECEIVED, scope=_ALL_LINKS),
    )
    if _ask(library, "nvmlDeviceGetFieldValues", handle, len(fields), fields):
        return None
    if any(field.error for field in fields):
        return None
    sent, received = (int(field.value) << 10 for field in fields)
    return sent, received


def _ask(library: c.CDLL, name: str, *arguments: Any) -> int:
    """Calls a function; simple objects of ctypes go by reference unless they are the handle."""
    by_reference = (c.c_uint, c.c_ulonglong, _Memory)
    given = [c.byref(a) if isinstance(a, by_reference) else a for a in arguments]
    if name == "nvmlDeviceGetHandleByUUID":
        given[-1] = c.byref(arguments[-1])
    function = getattr(library, name, None)
    return -1 if function is None else int(function(*given))


@functools.cache
def _library() -> c.CDLL | None:
    for name in _LIBRARIES:
        try:
            library = c.CDLL(name)
            if library.nvmlInit_v2() == 0:
                return library
        except (OSError, AttributeError):
            continue
    return None
