"""The host's side: joining the other ranks, symmetric tensors, barriers and reports."""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

# house: gpu-node, Triton is optional, and nothing outside this package imports it
import triton

# house: gpu-node, as above
import triton.language as tl

from pk_runtime.triton import device
from pk_runtime.triton.shared_heap import HEADER_BYTES, HeapError, SharedHeap

_ALIGNMENT = 256
_CONTEXT_WORDS = 8
_DIGESTS_AT = 2048
_ROWS, _COLUMNS = device.REPORT_ROWS.value, device.REPORT_COLUMNS.value
# A poll is an acquiring atomic on own memory: about 0.7 us on a GPU, 0.3 ms in the interpreter.
_POLLS_PER_S = {"cuda": 1.5e6, "cpu": 3e3}
_CPU_PROCESSORS = 4


class Heap(Protocol):
    """Memory of equal size on all ranks, of which each process sees all."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def bases(self) -> Sequence[int]:
        """The address of each rank's heap in this process, each a multiple of 4096."""

    @property
    def arena(self) -> torch.Tensor:
        """The own heap, uint8[nbytes]."""

    def close(self) -> None: ...


class PeerTimeout(RuntimeError):
    """A wait on a device gave up. `reports` says which, one line each."""

    def __init__(self, reports: Sequence[str]) -> None:
        self.reports = tuple(reports)
        super().__init__("; ".join(self.reports))


@triton.jit
def _barrier_kernel(bases):
    device.barrier(bases)


@triton.jit
def _exchange_kernel(bases, row, value):
    """`row`, int64[ranks] of the own heap: every rank's gets this rank's `value` at its place."""
    own = device.rank(bases)
    for other in range(device.world_size(bases)):
        device.store(row + own, value, bases, own, other)
    device.barrier(bases)


class Peers:
    """This rank and its peers: `rank`, `world_size`, `device`, and `bases`, the table that every
    function of `pk_runtime.triton.device` takes (int64[world_size] on the device).

    Made by `join`. What says "collective" is called by all ranks in the same order, and never while
    a CUDA graph is captured; everything else is safe there.
    """

    def __init__(self, heap: Heap, timeout_s: float) -> None:
        self.rank, self.world_size, self.device = heap.rank, heap.world_size, heap.device
        self._heap = heap
        self._used = HEADER_BYTES
        self._named: dict[str, torch.Tensor] = {}
        self._agreements = 0
        self._report = torch.zeros((1 + _ROWS, _COLUMNS), dtype=torch.int64, device=self.device)
        polls = max(1, round(timeout_s * _POLLS_PER_S[self.device.type]))
        front = [0] * _CONTEXT_WORDS
        front[-device.AT_REPORT.value] = self._report.data_ptr()
        front[-device.AT_POLLS.value] = polls
        front[-device.AT_RANK.value] = self.rank
        front[-device.AT_WORLD.value] = self.world_size
        table = torch.tensor([*front, *heap.bases], dtype=torch.int64, device=self.device)
        self.bases = table[_CONTEXT_WORDS:]

    @property
    def processors(self) -> int:
        """How many programs run at once: the GPU's SMs. On a CPU one by one; a few, for tests."""
        if self.device.type == "cpu":
            return _CPU_PROCESSORS
        return int(torch.cuda.get_device_properties(self.device).multi_processor_count)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A symmetric tensor, zeroed, which every rank has at the same place. Collective.

        Stays until `close`. Raises HeapError when the heap is full or the ranks disagree.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        start, end = self._used, self._used + nbytes
        if end > self._heap.arena.numel():
            raise HeapError(
                f"rank {self.rank}: {tuple(shape)} of {dtype} needs {nbytes} bytes, of "
                f"{self._heap.arena.numel()} in the heap {start} are used: join with more heap_bytes"
            )
        self._agree(f"{tuple(shape)} of {dtype} at {start}")
        self._used = -(-end // _ALIGNMENT) * _ALIGNMENT
        part: torch.Tensor = self._heap.arena[start:end].view(dtype).view(tuple(shape))
        return part

    def workspace(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The symmetric tensor of that name: zeroed when first asked for (collective then), later
        the same memory with what launches left in it. Raises ValueError for another shape."""
        found = self._named.get(name)
        if found is None:
            found = self._named[name] = self.empty(shape, dtype)
        if found.shape != torch.Size(shape) or found.dtype != dtype:
            raise ValueError(
                f"workspace {name!r} is {tuple(found.shape)} of {found.dtype}, not "
                f"{tuple(shape)} of {dtype}: put the shape into the name"
            )
        return found

    def barrier(self) -> None:
        """All ranks' streams meet: what each stored before can be loaded by all after it."""
        _barrier_kernel[(1,)](self.bases, num_warps=1)

    def failures(self) -> tuple[str, ...]:
        """One line for each wait that gave up since joining; waits for the device."""
        table = self._report.cpu()
        lines = [self._explain(row) for row in table[1 : 1 + min(int(table[0, 0]), _ROWS)].tolist()]
        if int(table[0, 0]) > _ROWS:
            lines.append(f"rank {self.rank}: {int(table[0, 0]) - _ROWS} more waits gave up")
        return tuple(lines)

    def check(self) -> None:
        """Waits for the device; raises PeerTimeout if any wait gave up since joining."""
        failures = self.failures()
        if failures:
            raise PeerTimeout(failures)

    def close(self) -> None:
        """Gives the heap back; its tensors must no longer be used, here or by a peer."""
        self._named.clear()
        self._heap.close()

    def _agree(self, text: str) -> None:
        # Two rows by turns: who writes one again has met all ranks since they read it.
        at = _DIGESTS_AT + 8 * device.MAX_RANKS.value * (self._agreements % 2)
        self._agreements += 1
        row = self._heap.arena[at : at + 8 * self.world_size].view(torch.int64)
        digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)
        _exchange_kernel[(1,)](self.bases, row, digest, num_warps=1)
        self.check()
        others = [r for r, found in enumerate(row.tolist()) if found != digest]
        if others:
            raise HeapError(
                f"rank {self.rank} asked for {text}, ranks {others} for something else: all ranks "
                "ask for the same tensors in the same order"
            )

    def _explain(self, row: list[int]) -> str:
        rank, program, address, slot, expected, seen = row
        return (
            f"rank {rank} program {program} waits for {self._name(address)}[{slot}] >= {expected}, "
            f"last seen {seen}"
        )

    def _name(self, address: int) -> str:
        offset = address - self._heap.bases[self.rank]
        if 0 <= offset < HEADER_BYTES:
            return "barrier"
        for name, tensor in self._named.items():
            start = tensor.data_ptr()
            if start <= address < start + tensor.nbytes:
                shift = (address - start) // 4
                return f"{name!r}" + (f" + {shift}" if shift else "")
        return f"heap + {offset}" if 0 <= offset < self._heap.arena.numel() else "memory of its own"


def join(
    folder: Path,
    rank: int,
    world_size: int,
    *,
    heap_bytes: int = 1 << 30,
    timeout_s: float = 10.0,
    deadline_s: float = 60.0,
) -> Peers:
    """Meets the other ranks, each a process of its own that calls this, and maps their heaps.

    On GPUs rank r takes device r, which becomes the current one; with TRITON_INTERPRET=1 the ranks
    are on the CPU. `folder` is private to this run and known to all ranks. `timeout_s` bounds every
    wait on a device, `deadline_s` this call. Raises HeapError.
    """
    if not 1 <= world_size <= device.MAX_RANKS.value or not 0 <= rank < world_size:
        raise HeapError(f"rank {rank} of {world_size}: there may be {device.MAX_RANKS.value}")
    if heap_bytes <= HEADER_BYTES:
        raise HeapError(f"heap_bytes is {heap_bytes}: the library needs {HEADER_BYTES} of them")
    heap_bytes = -(-heap_bytes // HEADER_BYTES) * HEADER_BYTES
    if device.INTERPRETED:
        return Peers(SharedHeap.join(folder, rank, world_size, heap_bytes, deadline_s), timeout_s)
    if not torch.cuda.is_available():
        raise HeapError("there is no GPU: set TRITON_INTERPRET=1 before Python starts to use a CPU")
    from pk_runtime.triton.gpu_heap import GpuHeap

    return Peers(GpuHeap(folder, rank, world_size, heap_bytes, deadline_s), timeout_s)
