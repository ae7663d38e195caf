"""What `gpu_check` runs beside a GPU, inside a sandbox or not: `python -I -S -c SOURCE`.

Standard library only. It reads requests from descriptor 3, a Unix socket, one JSON object a line,
and answers each with one: {"ok": true, ...} or {"ok": false, "call", "code", "name", "hints"}.
Requests are {"do": NAME, "device": NUMBER}:

- "memory": the primary context of the device, 1 MiB set and copied back;
- "export": device memory that is filled with a pattern, as a file descriptor (SCM_RIGHTS);
- "import": the descriptor that comes with the request, mapped for the device and compared.

Signatures and structures are those of cuda.h; every result is looked at.
"""

import array
import ctypes
import errno
import glob
import json
import os
import socket
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint64, c_void_p
from typing import Any

CHANNEL = 3
DRIVER = "libcuda.so.1"
MEMORY_BYTES = 1 << 20
_LINE_BYTES = 1 << 16
_PATTERN, _SHARED_PATTERN = 0x5A, 0xC3
_PINNED, _DEVICE, _FILE_DESCRIPTOR, _READ_WRITE = 1, 1, 1, 3
_LOOKED_AT = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/proc/driver/nvidia/version",
              "/proc/driver/nvidia/params", "/proc/devices", "/sys/bus/pci/devices",
              "/sys/devices/system/cpu", "/sys/module/nvidia")  # fmt: skip
# result: always CUresult, an int; pointers to device memory and handles are 64 bits wide
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (ctypes.c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemsetD8_v2": (c_uint64, c_ubyte, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuMemGetAllocationGranularity": (POINTER(c_size_t), c_void_p, c_int),
    "cuMemCreate": (POINTER(c_uint64), c_size_t, c_void_p, c_uint64),
    "cuMemAddressReserve": (POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemSetAccess": (c_uint64, c_size_t, c_void_p, c_size_t),
    "cuMemExportToShareableHandle": (POINTER(c_int), c_uint64, c_int, c_uint64),
    "cuMemImportFromShareableHandle": (POINTER(c_uint64), c_void_p, c_int),
}


class Refused(Exception):  # noqa: N818 - an outcome, not a mistake
    """A call of the driver did not return CUDA_SUCCESS."""

    def __init__(self, call: str, code: int, name: str, number: int) -> None:
        super().__init__(f"{call} returned {code} ({name})")
        self.answer = {"ok": False, "call": call, "code": code, "name": name,
                       "errno": errno.errorcode.get(number, str(number))}  # fmt: skip


class Driver:
    """libcuda, with the primary context of one device current."""

    def __init__(self, device: int) -> None:
        self._library = ctypes.CDLL(DRIVER, use_errno=True)
        self.call("cuInit", 0)
        version, count, ordinal = c_int(), c_int(), c_int()
        self.call("cuDriverGetVersion", byref(version))
        self.call("cuDeviceGetCount", byref(count))
        self.call("cuDeviceGet", byref(ordinal), device)
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, len(name), ordinal)
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), ordinal)
        self.call("cuCtxSetCurrent", context)
        self.device = device
        self.facts = {"devices": count.value, "name": name.value.decode(errors="replace"),
                      "cuda": version.value}  # fmt: skip

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function of the driver; Refused unless it succeeds."""
        function = getattr(self._library, name)
        function.argtypes, function.restype = _SIGNATURES[name], c_int
        ctypes.set_errno(0)
        code = function(*arguments)
        if code != 0:
            raise Refused(name, code, self._name(code), ctypes.get_errno())

    def _name(self, code: int) -> str:
        text = c_char_p()
        function = self._library.cuGetErrorName
        function.argtypes, function.restype = _SIGNATURES["cuGetErrorName"], c_int
        function(code, byref(text))
        return (text.value or b"unknown").decode()

    def expect(self, address: c_uint64, pattern: int, count: int) -> None:
        """Copies device memory back and compares it; ValueError with the first difference."""
        back = ctypes.create_string_buffer(count)
        self.call("cuMemcpyDtoH_v2", back, address, count)
        if back.raw != bytes([pattern]) * count:
            at = next(i for i, value in enumerate(back.raw) if value != pattern)
            raise ValueError(f"byte {at} of {count} is {back.raw[at]:#x} and not {pattern:#x}")

    def map(self, handle: c_uint64, size: int) -> c_uint64:
        """Maps physical memory for this device."""
        address = c_uint64()
        self.call("cuMemAddressReserve", byref(address), size, 0, 0, 0)
        self.call("cuMemMap", address, size, 0, handle, 0)
        # CUmemAccessDesc: location type, location id, flags
        access = (c_int * 3)(_DEVICE, self.device, _READ_WRITE)
        self.call("cuMemSetAccess", address, size, ctypes.addressof(access), 1)
        return address

    def granularity(self) -> tuple[int, Any]:
        """(bytes that an exportable allocation is a multiple of, its properties)."""
        # CUmemAllocationProp: type, handle types, location type, location id, 16 bytes of zeros
        properties = (c_int * 8)(_PINNED, _FILE_DESCRIPTOR, _DEVICE, self.device)
        size = c_size_t()
        self.call("cuMemGetAllocationGranularity", byref(size), ctypes.addressof(properties), 0)
        return size.value, properties


def memory(driver: Driver) -> None:
    """Sets memory of the device and copies it back."""
    address = c_uint64()
    driver.call("cuMemAlloc_v2", byref(address), MEMORY_BYTES)
    driver.call("cuMemsetD8_v2", address, _PATTERN, MEMORY_BYTES)
    driver.expect(address, _PATTERN, MEMORY_BYTES)
    driver.call("cuMemFree_v2", address)


def export(driver: Driver) -> tuple[int, int]:
    """(descriptor, bytes) of new device memory that holds the shared pattern."""
    size, properties = driver.granularity()
    handle, descriptor = c_uint64(), c_int(-1)
    driver.call("cuMemCreate", byref(handle), size, ctypes.addressof(properties), 0)
    address = driver.map(handle, size)
    driver.call("cuMemsetD8_v2", address, _SHARED_PATTERN, size)
    driver.call("cuCtxSynchronize")
    driver.call("cuMemExportToShareableHandle", byref(descriptor), handle, _FILE_DESCRIPTOR, 0)
    return descriptor.value, size


def import_(driver: Driver, descriptor: int, size: int) -> None:
    """Maps memory that another process exported, and compares it with the shared pattern."""
    handle = c_uint64()
    driver.call("cuMemImportFromShareableHandle", byref(handle), descriptor, _FILE_DESCRIPTOR)
    os.close(descriptor)
    address = driver.map(handle, size)
    driver.expect(address, _SHARED_PATTERN, size)


def hints() -> list[str]:
    """What the driver looks for and cannot open: for a person who must find what is missing."""
    found = []
    for path in sorted({*_LOOKED_AT, *glob.glob("/dev/nvidia*")}):
        mode = os.O_RDWR if path.startswith("/dev/") else os.O_RDONLY
        try:
            os.close(os.open(path, mode | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError as error:
            found.append(f"{path}: {errno.errorcode.get(error.errno or 0, error.errno)}")
    return found or ["every device node and file that was looked at can be opened"]


def serve(channel: socket.socket) -> None:
    """Answers requests until the other side closes the channel."""
    drivers: dict[int, Driver] = {}
    while True:
        text, received, _, _ = socket.recv_fds(channel, _LINE_BYTES, 1)
        if not text:
            return
        sent = array.array("i")
        try:
            request = json.loads(text)
            device = int(request["device"])
            if device not in drivers:
                drivers[device] = Driver(device)
            answer = {"ok": True, **drivers[device].facts}
            if request["do"] == "memory":
                memory(drivers[device])
            elif request["do"] == "export":
                descriptor, answer["bytes"] = export(drivers[device])
                sent.append(descriptor)
            else:
                import_(drivers[device], received[0], int(request["bytes"]))
        except Refused as refused:
            answer = {**refused.answer, "hints": hints()}
        except (OSError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            answer = {"ok": False, "call": reason, "code": -1, "name": "", "hints": hints()}
        socket.send_fds(channel, [json.dumps(answer).encode() + b"\n"], sent)


if __name__ == "__main__":
    serve(socket.socket(fileno=CHANNEL))
