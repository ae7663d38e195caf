"""Memory that a worker owns and lends to runners: of a GPU, or of the host for tests."""

import contextlib
import mmap
import os
from typing import Protocol

import torch
from torch import Tensor

from problems.description import DTYPES
from sandbox.gpu.arena import Place


class Block(Protocol):
    """Memory with a file descriptor; `bytes` is all of it as uint8, on the worker's device."""

    bytes: Tensor

    def export(self) -> int:
        """A new descriptor; the caller closes it."""
        ...

    def close(self) -> None:
        """Ends this process's use; nothing may touch `bytes` afterwards."""
        ...


class DeviceBlock:
    """Memory of a GPU that other processes can map."""

    def __init__(self, device: torch.device, nbytes: int) -> None:
        from pk_runtime.gpu.memory import Allocation
        from pk_runtime.gpu.tensors import tensor_at

        self._allocation = Allocation.create(device.index, nbytes)
        self.bytes = tensor_at(
            self._allocation.address, (nbytes,), torch.uint8, device=device.index
        )

    def export(self) -> int:
        """A new descriptor; the caller closes it."""
        return self._allocation.export()

    def close(self) -> None:
        """Unmaps it, once the device is done with it."""
        torch.cuda.synchronize(self.bytes.device)
        self.bytes = torch.empty(0, dtype=torch.uint8)
        self._allocation.close()


class HostBlock:
    """Memory of the host; stands for a GPU's in tests."""

    def __init__(self, nbytes: int) -> None:
        self._file = os.memfd_create("block")
        os.ftruncate(self._file, nbytes)
        self._map = mmap.mmap(self._file, nbytes)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def export(self) -> int:
        """A new descriptor; the caller closes it."""
        return os.dup(self._file)

    def close(self) -> None:
        """Unmaps it when the last tensor on it is gone."""
        self.bytes = torch.empty(0, dtype=torch.uint8)
        os.close(self._file)
        with contextlib.suppress(BufferError):
            self._map.close()


def allocate(device: torch.device, nbytes: int) -> Block:
    """New memory on a device; its content is undefined."""
    return DeviceBlock(device, nbytes) if device.type == "cuda" else HostBlock(nbytes)


def view(memory: Tensor, place: Place) -> Tensor:
    """The tensor at a place of an arena, [*shape], strided where rows are padded."""
    flat = memory[place.offset : place.offset + place.nbytes].view(DTYPES[place.spec.dtype])
    return flat.view(*place.spec.shape[:-1], place.pitch)[..., : place.cols]
