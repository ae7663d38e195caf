"""Device memory that other processes can map: CUDA's virtual memory management, file descriptors.

An allocation is physical memory of one device, mapped into this process. `export` makes a file
descriptor of it, which goes to another process over a Unix socket; `receive` maps it there. The
memory lives until the last process has closed or died.
"""

import ctypes as c
import os
from collections.abc import Sequence

from pk_runtime.gpu.cuda_api import call, query
from pk_runtime.gpu.driver import Stream, driver, fill

_PINNED = _DEVICE = _POSIX_FD = 1
_MINIMUM = 0
_READ_WRITE = 3
_ZERO_TIMEOUT_S = 30.0


class Location(c.Structure):
    """CUmemLocation."""

    _fields_ = [("type", c.c_int), ("id", c.c_int)]


class AllocationFlags(c.Structure):
    """CUmemAllocationProp::allocFlags."""

    _fields_ = [
        ("compression_type", c.c_ubyte),
        ("gpu_direct_rdma_capable", c.c_ubyte),
        ("usage", c.c_ushort),
        ("reserved", c.c_ubyte * 4),
    ]


class AllocationProperties(c.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", c.c_int),
        ("requested_handle_types", c.c_int),
        ("location", Location),
        ("win32_handle_meta_data", c.c_void_p),
        ("flags", AllocationFlags),
    ]


class AccessDescription(c.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", Location), ("flags", c.c_int)]


class Allocation:
    """Physical memory of a device, mapped at `address` for `nbytes` (whole pages of 2 MiB).

    Make it with `create` or `receive`. `close` ends this process's use of it; nothing that runs on
    a device may touch the address afterwards.
    """

    def __init__(self, handle: int, nbytes: int, accessible: Sequence[int]) -> None:
        """Maps the memory of `handle`, which becomes this object's, for the given devices."""
        self.nbytes = nbytes
        self.address = 0
        self._handle = handle
        self._mapped = False
        try:
            self._map(accessible)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def create(device: int, nbytes: int, *, accessible: Sequence[int] = ()) -> "Allocation":
        """New memory on `device`, reachable from it and from the devices in `accessible`.

        Its content is undefined. DriverError if there is not enough.
        """
        driver(device)
        size = rounded(device, nbytes)
        made = c.c_uint64()
        call("cuMemCreate", c.byref(made), size, c.byref(_properties(device)), 0)
        return Allocation(made.value, size, (device, *accessible))

    @staticmethod
    def receive(fd: int, nbytes: int, device: int) -> "Allocation":
        """Maps what another process exported, for `device` of this process. Closes `fd`.

        `nbytes` is what the exporter allocated. DriverError if the descriptor is of something else.
        """
        try:
            driver(device)
            size = rounded(device, nbytes)
            made = c.c_uint64()
            call("cuMemImportFromShareableHandle", c.byref(made), c.c_void_p(fd), _POSIX_FD)
        finally:
            os.close(fd)
        return Allocation(made.value, size, (device,))

    def export(self) -> int:
        """A new file descriptor of the memory; the caller closes it."""
        made = c.c_int(-1)
        call("cuMemExportToShareableHandle", c.byref(made), self._handle, _POSIX_FD, 0)
        os.set_inheritable(made.value, False)
        return made.value

    def zero(self) -> None:
        """Fills the memory with zeros; returns when they are there."""
        stream = Stream()
        try:
            fill(self.address, 0, self.nbytes, stream)
            stream.synchronize(_ZERO_TIMEOUT_S)
        finally:
            stream.close()

    def close(self) -> None:
        """Unmaps and frees the memory; once is enough. Errors of a lost context are ignored."""
        if self._mapped:
            query("cuMemUnmap", self.address, self.nbytes)
            self._mapped = False
        if self.address:
            query("cuMemAddressFree", self.address, self.nbytes)
            self.address = 0
        if self._handle:
            query("cuMemRelease", self._handle)
            self._handle = 0

    def _map(self, accessible: Sequence[int]) -> None:
        reserved = c.c_uint64()
        call("cuMemAddressReserve", c.byref(reserved), self.nbytes, 0, 0, 0)
        self.address = reserved.value
        call("cuMemMap", self.address, self.nbytes, 0, self._handle, 0)
        self._mapped = True
        devices = tuple(dict.fromkeys(accessible))
        access = (AccessDescription * len(devices))(
            *(AccessDescription(Location(_DEVICE, device), _READ_WRITE) for device in devices)
        )
        call("cuMemSetAccess", self.address, self.nbytes, access, len(devices))


def rounded(device: int, nbytes: int) -> int:
    """`nbytes` in whole pages of `device`; ValueError below one byte."""
    if nbytes < 1:
        raise ValueError(f"an allocation needs at least 1 byte, not {nbytes}")
    page = c.c_size_t()
    properties = _properties(device)
    call("cuMemGetAllocationGranularity", c.byref(page), c.byref(properties), _MINIMUM)
    return -(-nbytes // page.value) * page.value


def _properties(device: int) -> AllocationProperties:
    return AllocationProperties(
        _PINNED, _POSIX_FD, Location(_DEVICE, device), None, AllocationFlags()
    )
