"""The CUDA driver: devices, contexts, streams, events, graphs, copies. Needs no other package.

What waits for a device has a deadline: a kernel that never ends is reported, not waited for.
"""

import ctypes as c
import functools
import time
import uuid
from collections.abc import Callable

from pk_runtime.gpu.cuda_api import (
    NOT_READY,
    DriverError,
    DriverTimeoutError,
    NoDriverError,
    call,
    failure,
    query,
)

__all__ = [
    "Driver",
    "DriverError",
    "DriverTimeoutError",
    "Event",
    "Graph",
    "HostMemory",
    "NoDriverError",
    "Stream",
    "can_access_peer",
    "capability",
    "copy",
    "current_device",
    "device_count",
    "device_name",
    "device_uuid",
    "driver",
    "driver_version",
    "fill",
    "forget_persisting_l2",
    "multiprocessors",
    "read",
    "write",
]

_MULTIPROCESSORS = 16
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
_PERSISTING_L2_BYTES = 6
_NON_BLOCKING = _EXTERNAL = 1
_NO_TIMING = 2
_CAPTURE_THREAD_LOCAL = 1
_PORTABLE_MAPPED = 3
_POLL_S = 0.0002
_SPIN_S = 0.002
_COPY_TIMEOUT_S = 30.0


def device_count() -> int:
    """How many GPUs the driver sees."""
    count = c.c_int()
    call("cuDeviceGetCount", c.byref(count))
    return count.value


def driver_version() -> int:
    """The newest CUDA version that the driver knows, 13000 for 13.0."""
    version = c.c_int()
    call("cuDriverGetVersion", c.byref(version))
    return version.value


def can_access_peer(device: int, peer: int) -> bool:
    """Whether a device reaches another one's memory."""
    able = c.c_int()
    call("cuDeviceCanAccessPeer", c.byref(able), device, peer)
    return bool(able.value)


def current_device() -> int:
    """The device of this thread's context; DriverError if it has none."""
    device = c.c_int()
    call("cuCtxGetDevice", c.byref(device))
    return device.value


def multiprocessors(device: int) -> int:
    """The number of SMs of a device."""
    return _attribute(device, _MULTIPROCESSORS)


def capability(device: int) -> tuple[int, int]:
    """The compute capability of a device, (9, 0) for Hopper."""
    return _attribute(device, _CAPABILITY_MAJOR), _attribute(device, _CAPABILITY_MINOR)


def device_name(device: int) -> str:
    """The marketing name of a device."""
    text = c.create_string_buffer(256)
    call("cuDeviceGetName", text, len(text), device)
    return text.value.decode(errors="replace")


def device_uuid(device: int) -> str:
    """A device's name that is the same in every process, as NVML writes it: `GPU-...`."""
    raw = c.create_string_buffer(16)
    call("cuDeviceGetUuid_v2", raw, device)
    return f"GPU-{uuid.UUID(bytes=raw.raw)}"


def forget_persisting_l2() -> None:
    """Nothing of this context's stays in L2 out of turn, and nothing more may be kept there.

    A driver or a slice of a device that has no such part of L2 has nothing to forget.
    """
    query("cuCtxSetLimit", _PERSISTING_L2_BYTES, 0)
    query("cuCtxResetPersistingL2Cache")


def _attribute(device: int, number: int) -> int:
    value = c.c_int()
    call("cuDeviceGetAttribute", c.byref(value), number, device)
    return value.value


class Driver:
    """The primary context of one device, which torch and the CUDA runtime use as well."""

    def __init__(self, device: int) -> None:
        self.device = device
        context = c.c_void_p()
        call("cuDevicePrimaryCtxRetain", c.byref(context), device)
        self._context = context
        self.activate()

    def activate(self) -> None:
        """Makes the context current in the calling thread."""
        call("cuCtxSetCurrent", self._context)

    @property
    def name(self) -> str:
        return device_name(self.device)

    @property
    def uuid(self) -> str:
        return device_uuid(self.device)

    @property
    def multiprocessors(self) -> int:
        return multiprocessors(self.device)


@functools.cache
def _opened(device: int) -> Driver:
    return Driver(device)


def driver(device: int = 0) -> Driver:
    """The driver's context of a device, made once per process, current in the calling thread."""
    opened = _opened(device)
    opened.activate()
    return opened


class Event:
    """A point in a stream. Closed explicitly; with a lost context closing does nothing."""

    def __init__(self, *, timing: bool = True) -> None:
        made = c.c_void_p()
        call("cuEventCreate", c.byref(made), 0 if timing else _NO_TIMING)
        self.handle = made.value or 0

    def record(self, stream: "Stream", *, external: bool = False) -> None:
        """Marks what `stream` holds now. `external`: in a captured graph, a node that marks the
        event in every replay, for timing from outside."""
        call("cuEventRecordWithFlags", self.handle, stream.handle, _EXTERNAL if external else 0)

    def done(self) -> bool:
        """Whether everything before the mark has ended; DriverError if a kernel failed."""
        return _done("cuEventQuery", self.handle)

    def synchronize(self, timeout_s: float) -> None:
        """Returns when the mark is reached; DriverTimeoutError after `timeout_s`."""
        _await("an event", self.done, timeout_s)

    def elapsed_ms(self, start: "Event") -> float:
        """Milliseconds from another event to this one; both must have been reached."""
        value = c.c_float()
        call("cuEventElapsedTime", c.byref(value), start.handle, self.handle)
        return value.value

    def close(self) -> None:
        """Frees the event."""
        if self.handle:
            query("cuEventDestroy_v2", self.handle)
            self.handle = 0


class Stream:
    """A queue of work on the current context's device, independent of the default stream."""

    def __init__(self, *, priority: int = 0) -> None:
        made = c.c_void_p()
        call("cuStreamCreateWithPriority", c.byref(made), _NON_BLOCKING, priority)
        self.handle = made.value or 0

    def wait_for(self, event: Event) -> None:
        """What comes later in this stream starts after the event."""
        call("cuStreamWaitEvent", self.handle, event.handle, 0)

    def done(self) -> bool:
        """Whether all work has ended; DriverError if a kernel failed."""
        return _done("cuStreamQuery", self.handle)

    def synchronize(self, timeout_s: float) -> None:
        """Returns when all work has ended; DriverTimeoutError after `timeout_s`."""
        _await("a stream", self.done, timeout_s)

    def close(self) -> None:
        """Frees the stream; its work goes on."""
        if self.handle:
            query("cuStreamDestroy_v2", self.handle)
            self.handle = 0


class Graph:
    """Work captured once, started with one call as often as wanted."""

    def __init__(self, stream: Stream, action: Callable[[], object]) -> None:
        """Captures what `action` puts into `stream`; nothing of it runs yet."""
        graph, ready = c.c_void_p(), c.c_void_p()
        call("cuStreamBeginCapture_v2", stream.handle, _CAPTURE_THREAD_LOCAL)
        try:
            action()
        except BaseException:
            query("cuStreamEndCapture", stream.handle, c.byref(graph))
            if graph.value:
                query("cuGraphDestroy", graph)
            raise
        call("cuStreamEndCapture", stream.handle, c.byref(graph))
        try:
            call("cuGraphInstantiateWithFlags", c.byref(ready), graph, 0)
        finally:
            query("cuGraphDestroy", graph)
        self._ready = ready

    def launch(self, stream: Stream) -> None:
        """Starts a replay; returns at once."""
        call("cuGraphLaunch", self._ready, stream.handle)

    def close(self) -> None:
        """Frees the graph."""
        if self._ready.value:
            query("cuGraphExecDestroy", self._ready)
            self._ready = c.c_void_p()


def _done(name: str, handle: int) -> bool:
    code = query(name, handle)
    if code not in (0, NOT_READY):
        raise failure(name, code)
    return code == 0


def _await(what: str, done: Callable[[], bool], timeout_s: float) -> None:
    start = time.monotonic()
    while not done():
        waited = time.monotonic() - start
        if waited > timeout_s:
            raise DriverTimeoutError(what, timeout_s)
        if waited > _SPIN_S:
            time.sleep(_POLL_S)


class HostMemory:
    """Memory of the host that every device can write to, and that outlives a lost context."""

    def __init__(self, nbytes: int) -> None:
        made = c.c_void_p()
        call("cuMemHostAlloc", c.byref(made), nbytes, _PORTABLE_MAPPED)
        self.address = made.value or 0
        self.nbytes = nbytes
        c.memset(self.address, 0, nbytes)

    def read(self) -> bytes:
        """What it holds now."""
        return c.string_at(self.address, self.nbytes)

    def close(self) -> None:
        """Frees it; nothing may run that writes to it."""
        if self.address:
            query("cuMemFreeHost", self.address)
            self.address = 0


def read(address: int, nbytes: int) -> bytes:
    """Copies from a device, at once: whoever wrote there must have been waited for."""
    data = c.create_string_buffer(nbytes)
    _at_once("cuMemcpyDtoHAsync_v2", data, address, nbytes)
    return data.raw


def write(address: int, data: bytes) -> None:
    """Copies to a device, at once; returns when it has arrived."""
    _at_once("cuMemcpyHtoDAsync_v2", address, data, len(data))


def _at_once(name: str, *arguments: object) -> None:
    """A copy in a stream of its own: nothing else is waited for, and it has a deadline."""
    stream = Stream()
    try:
        call(name, *arguments, stream.handle)
        stream.synchronize(_COPY_TIMEOUT_S)
    finally:
        stream.close()


def copy(to: int, source: int, nbytes: int, stream: Stream) -> None:
    """Copies between devices or within one, in order of the stream."""
    call("cuMemcpyDtoDAsync_v2", to, source, nbytes, stream.handle)


def fill(address: int, word: int, nbytes: int, stream: Stream) -> None:
    """Fills memory with a 32-bit word, in order of the stream; `nbytes` is a multiple of 4."""
    call("cuMemsetD32Async", address, word, nbytes // 4, stream.handle)
