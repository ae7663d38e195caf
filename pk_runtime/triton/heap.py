"""Where peers' memory comes from: GPUs that map each other's, or processes on a CPU that do.

On a CPU a heap is memory without a name (a memfd) that its rank makes and passes on; each process
maps it wherever it has room. The same byte then has different addresses in different processes, as
on GPUs. Atomics on it are the machine's own: Triton's interpreter applies lock-free `std::atomic`
operations of 32 and 64 bits to the mapped addresses, with the order that `sem` asks for, and those
hold between processes as between threads. Its plain loads and stores are plain machine accesses, so
what was stored before a release is seen after the acquire that reads it.
"""

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from pk_runtime.gpu.rendezvous import Rendezvous

HEADER_BYTES = 4096
"""The first bytes of every heap belong to the library; heaps begin and end at multiples."""


class HeapError(RuntimeError):
    """A heap that cannot be had as asked: which rank, what is wrong with it."""


class Heap(Protocol):
    """Memory of one size on all ranks, zeroed at first, of which each process sees all."""

    @property
    def rank(self) -> int:
        """The own rank."""

    @property
    def device(self) -> torch.device:
        """Where the memory is."""

    @property
    def bases(self) -> Sequence[int]:
        """The address of each rank's heap in this process, each a multiple of HEADER_BYTES."""

    @property
    def arena(self) -> torch.Tensor:
        """The own heap, uint8[nbytes]."""

    def agree(self, what: str, value: Any) -> list[Any]:
        """Every rank's `value` (JSON) in rank order. Collective; raises RuntimeError in time."""

    def close(self) -> None:
        """Gives the memory back. Not collective."""


class SharedHeap:
    """The heaps of processes on a CPU."""

    def __init__(
        self, folder: Path, rank: int, world_size: int, nbytes: int, deadline_s: float
    ) -> None:
        self.rank, self.device = rank, torch.device("cpu")
        self._meeting = Rendezvous.join(folder, rank, world_size, deadline_s=deadline_s)
        try:
            parts = [torch.frombuffer(part, dtype=torch.uint8) for part in self._map(nbytes)]
        except BaseException:
            self._meeting.close()
            raise
        self.bases = tuple(part.data_ptr() for part in parts)
        self.arena = parts[rank]
        self._parts = parts

    def agree(self, what: str, value: Any) -> list[Any]:
        """See Heap."""
        return [each.body["value"] for each in self._meeting.exchange(what, {"value": value})]

    def close(self) -> None:
        """See Heap; the memory goes with the last tensor in it and the last process."""
        self._parts.clear()
        self.arena = torch.empty(0, dtype=torch.uint8)
        self._meeting.close()

    def _map(self, nbytes: int) -> list[mmap.mmap]:
        ranks = range(self._meeting.world_size)
        own = os.memfd_create("pk-heap", os.MFD_CLOEXEC)
        try:
            os.ftruncate(own, nbytes)
            # The own heap first, hence at another address than the peers map it.
            maps = {self.rank: mmap.mmap(own, nbytes)}
            given = {peer: own for peer in ranks if peer != self.rank}
            answers = self._meeting.exchange("heaps", {"nbytes": nbytes}, given, expected=1)
        finally:
            os.close(own)
        try:
            sizes = [answer.body["nbytes"] for answer in answers]
            if set(sizes) != {nbytes}:
                raise HeapError(f"rank {self.rank}: the ranks ask for heaps of {sizes} bytes")
            for peer in given:
                maps[peer] = mmap.mmap(answers[peer].files[0], nbytes)
        finally:
            for answer in answers:
                for descriptor in answer.files:
                    os.close(descriptor)
        return [maps[r] for r in ranks]


class GpuHeap:
    """The heaps of GPUs: one buffer of a SymmetricHeap. Rank r takes device r, as the current."""

    def __init__(
        self, folder: Path, rank: int, world_size: int, nbytes: int, deadline_s: float
    ) -> None:
        from pk_runtime.gpu.symmetric import SymmetricHeap

        self.rank, self.device = rank, torch.device("cuda", rank)
        torch.cuda.set_device(self.device)
        self._heap = SymmetricHeap.join(folder, rank, world_size, rank, deadline_s=deadline_s)
        try:
            buffer = self._heap.allocate("triton", nbytes)
            self.bases = buffer.pointers
            self.arena = buffer.tensor((nbytes,), torch.uint8)
        except BaseException:
            self._heap.close()
            raise

    def agree(self, what: str, value: Any) -> list[Any]:
        """See Heap."""
        return self._heap.agree(what, value)

    def close(self) -> None:
        """See Heap; waits for this device, on which nothing may use the memory any more."""
        torch.cuda.synchronize(self.device)
        self._heap.close()
