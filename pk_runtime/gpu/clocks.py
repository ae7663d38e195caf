"""The clock a GPU runs at, from NVML, where that is installed. Needs no other package."""

import ctypes as c
import functools

_LIBRARIES = ("libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1")
_SM, _MEMORY = 1, 2


@functools.cache
def _library() -> c.CDLL | None:
    for name in _LIBRARIES:
        try:
            library = c.CDLL(name)
        except OSError:
            continue
        return library if library.nvmlInit_v2() == 0 else None
    return None


def sm_clock_mhz(uuid: str) -> int | None:
    """The SM clock in MHz now, of the device that `driver.device_uuid` names; None if unknown."""
    return _clock(uuid, _SM)


def memory_clock_mhz(uuid: str) -> int | None:
    """The memory clock in MHz now; None if unknown."""
    return _clock(uuid, _MEMORY)


def _clock(uuid: str, which: int) -> int | None:
    library = _library()
    if library is None:
        return None
    device, clock = c.c_void_p(), c.c_uint()
    if library.nvmlDeviceGetHandleByUUID(uuid.encode(), c.byref(device)):
        return None
    if library.nvmlDeviceGetClockInfo(device, which, c.byref(clock)):
        return None
    return clock.value
