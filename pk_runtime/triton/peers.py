"""The host's side: joining the other ranks, symmetric tensors, barriers and reports."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

# house: gpu-node, Triton is optional, and nothing outside this package imports it
import triton

from pk_runtime.gpu.rendezvous import new_run_folder
from pk_runtime.triton import device
from pk_runtime.triton.heap import HEADER_BYTES, GpuHeap, Heap, HeapError, SharedHeap

__all__ = ["PeerTimeoutError", "Peers", "join", "new_run_folder"]

_ALIGNMENT = 256
_CONTEXT_WORDS = 8
_ROWS, _COLUMNS = device.REPORT_ROWS.value, device.REPORT_COLUMNS.value
# A poll is an acquiring atomic on own memory: about 0.7 us on a GPU, 0.3 ms in the interpreter.
_POLLS_PER_S = {"cuda": 1.5e6, "cpu": 3e3}
_CPU_PROCESSORS = 4


class PeerTimeoutError(RuntimeError):
    """A wait on a device gave up. `reports` says which, one line each."""

    def __init__(self, reports: Sequence[str]) -> None:
        self.reports = tuple(reports)
        super().__init__("; ".join(self.reports))


@triton.jit
def _barrier_kernel(bases):
    device.barrier(bases)


class Peers:
    """This rank and its peers: `rank`, `world_size`, `device`, and `bases`, the table that every
    function of `pk_runtime.triton.device` takes (int64[world_size] on the device).

    Made by `join`. What says "collective" is called by all ranks in the same order, and never while
    a CUDA graph is captured; everything else is safe there.
    """

    def __init__(self, heap: Heap, timeout_s: float) -> None:
        self.rank, self.world_size, self.device = heap.rank, len(heap.bases), heap.device
        self._heap = heap
        self._used = HEADER_BYTES
        self._named: dict[str, torch.Tensor] = {}
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
                f"rank {self.rank}: {tuple(shape)} of {dtype} needs {nbytes} bytes; of the heap's "
                f"{self._heap.arena.numel()} {start} are used: join with more heap_bytes"
            )
        wanted = f"{tuple(shape)} of {dtype}"
        found = self.agree("a symmetric tensor", wanted)
        if any(other != wanted for other in found):
            raise HeapError(f"the ranks ask for different symmetric tensors: {found}")
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

    def agree(self, what: str, value: Any) -> list[Any]:
        """Every rank's `value` (JSON) in rank order; `what` names the step in errors. Collective.

        The processes meet, not the devices. Raises RuntimeError when a rank does not come.
        """
        return self._heap.agree(what, value)

    def barrier(self) -> None:
        """All ranks' streams meet: what each stored before can be loaded by all after it."""
        _barrier_kernel[(1,)](self.bases, num_warps=1)

    def failures(self) -> tuple[str, ...]:
        """One line for each wait that gave up since joining; waits for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        table = self._report.cpu()
        lines = [self._explain(row) for row in table[1 : 1 + min(int(table[0, 0]), _ROWS)].tolist()]
        if int(table[0, 0]) > _ROWS:
            lines.append(f"rank {self.rank}: {int(table[0, 0]) - _ROWS} more waits gave up")
        return tuple(lines)

    def check(self) -> None:
        """Waits for the device; raises PeerTimeoutError if any wait gave up since joining."""
        failures = self.failures()
        if failures:
            raise PeerTimeoutError(failures)

    def close(self) -> None:
        """Gives the heap back. Not collective: a peer that still uses it keeps its own mapping."""
        self._named.clear()
        self._heap.close()

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
    are on the CPU. `folder` is one that `new_run_folder` made, told to all ranks. `timeout_s` is
    about the bound of a wait on a device, `deadline_s` that of a step in which processes meet.
    Raises HeapError for sizes, another RuntimeError when a rank does not come or a GPU does not
    reach another.
    """
    if not 1 <= world_size <= device.MAX_RANKS.value or not 0 <= rank < world_size:
        raise HeapError(f"rank {rank} of {world_size}: there may be {device.MAX_RANKS.value}")
    if heap_bytes <= HEADER_BYTES:
        raise HeapError(f"heap_bytes is {heap_bytes}: the library needs {HEADER_BYTES} of them")
    heap_bytes = -(-heap_bytes // HEADER_BYTES) * HEADER_BYTES
    kind: type[SharedHeap | GpuHeap] = SharedHeap if device.INTERPRETED else GpuHeap
    if kind is GpuHeap and not torch.cuda.is_available():
        raise HeapError("there is no GPU: set TRITON_INTERPRET=1 before Python starts to use a CPU")
    return Peers(kind(folder, rank, world_size, heap_bytes, deadline_s), timeout_s)
