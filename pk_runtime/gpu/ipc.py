"""A torch tensor seen by another process of the machine: CUDA IPC, for memory that users bring.

A CUDA handle names the whole allocation that a tensor lies in, so what is shared is that handle,
the tensor's place in it, and a sample of its bytes, which the receiver looks at before it trusts
the mapping. Symmetric memory (symmetric.py) is what kernels want; this is for the rest.
"""

import ctypes as c
import os
from dataclasses import dataclass
from typing import Any

import torch

from pk_runtime.gpu.cuda_api import DriverError, IpcHandle, call
from pk_runtime.gpu.driver import device_count, device_uuid, driver, read
from pk_runtime.gpu.tensors import tensor_at

_LAZY_PEER_ACCESS = 1
_SAMPLE_BYTES = 64


class IpcError(RuntimeError):
    """A tensor that cannot be shared, or a mapping that shows something else."""


@dataclass(frozen=True)
class SharedTensor:
    """What another process needs to see a tensor; plain data, JSON by `to_json`."""

    process: int
    device: str
    handle: str
    offset: int
    shape: tuple[int, ...]
    dtype: str
    sample: str

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        return {**vars(self), "shape": list(self.shape)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> "SharedTensor":
        """Reads what `to_json` wrote; IpcError for another form."""
        try:
            return SharedTensor(
                **{field: data[field] for field in ("device", "handle", "dtype", "sample")},
                process=int(data["process"]),
                offset=int(data["offset"]),
                shape=tuple(map(int, data["shape"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise IpcError(f"this describes no shared tensor: {error}") from error


def share(tensor: torch.Tensor) -> SharedTensor:
    """Makes a contiguous CUDA tensor known to other processes.

    It must stay alive, and unchanged until they have opened it. IpcError for memory that CUDA IPC
    cannot name (expandable segments, memory pools, symmetric memory).
    """
    if not tensor.is_cuda or not tensor.is_contiguous() or not tensor.numel():
        raise IpcError("only contiguous CUDA tensors with elements can be shared")
    torch.cuda.synchronize(tensor.device)
    device = int(tensor.device.index)
    driver(device)
    base, size, handle = c.c_uint64(), c.c_size_t(), IpcHandle()
    call("cuMemGetAddressRange_v2", c.byref(base), c.byref(size), tensor.data_ptr())
    try:
        call("cuIpcGetMemHandle", c.byref(handle), base.value)
    except DriverError as error:
        raise IpcError(
            f"this memory cannot be shared by CUDA IPC ({error}): allocate it with plain "
            "cudaMalloc (no expandable_segments), or copy it into a SymmetricHeap's buffer"
        ) from error
    return SharedTensor(
        os.getpid(),
        device_uuid(device),
        bytes(handle).hex(),
        tensor.data_ptr() - base.value,
        tuple(tensor.shape),
        str(tensor.dtype).removeprefix("torch."),
        _sample(tensor.data_ptr(), tensor.nbytes),
    )


class Mapping:
    """Another process's tensors, mapped into this one. A handle is opened once, and closed here."""

    def __init__(self, device: int) -> None:
        self.device = device
        self._bases: dict[str, int] = {}

    def open(self, shared: SharedTensor) -> torch.Tensor:
        """The tensor of another process, without a copy; usable until `close`.

        The tensor belongs to a device of its owner's choice, and this process reaches it from
        `device`. IpcError if it is this process's own or shows other bytes.
        """
        if shared.process == os.getpid():
            raise IpcError("a process cannot open what it shares itself: use the tensor")
        driver(self.device)
        dtype = getattr(torch, shared.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise IpcError(f"there is no dtype {shared.dtype!r}")
        if shared.handle not in self._bases:
            self._bases[shared.handle] = self._map(shared)
        address = self._bases[shared.handle] + shared.offset
        number = {device_uuid(n): n for n in range(device_count())}.get(shared.device)
        if number is None:
            raise IpcError("this process does not see the tensor's GPU: CUDA_VISIBLE_DEVICES?")
        tensor = tensor_at(address, shared.shape, dtype, device=number, owner=self)
        if _sample(address, tensor.nbytes) != shared.sample:
            raise IpcError("the mapping shows other bytes than the tensor had when it was shared")
        return tensor

    def close(self) -> None:
        """Unmaps everything; no tensor of it may be used afterwards."""
        for base in self._bases.values():
            call("cuIpcCloseMemHandle", base)
        self._bases = {}

    def _map(self, shared: SharedTensor) -> int:
        base, handle = c.c_uint64(), IpcHandle()
        raw = bytes.fromhex(shared.handle)
        if len(raw) != c.sizeof(handle):
            raise IpcError("the handle has a wrong length")
        c.memmove(c.byref(handle), raw, len(raw))
        call("cuIpcOpenMemHandle_v2", c.byref(base), handle, _LAZY_PEER_ACCESS)
        return base.value


def _sample(address: int, nbytes: int) -> str:
    """The first and the last bytes of a tensor."""
    count = min(nbytes, _SAMPLE_BYTES)
    return (read(address, count) + read(address + nbytes - count, count)).hex()
