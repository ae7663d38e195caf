"""The symmetric heap of a CPU: one file in memory per rank, mapped by every rank.

Each process maps the files wherever it has room, so the same byte has different addresses in
different processes, as on GPUs. Atomics are the machine's own: Triton's interpreter applies
lock-free `std::atomic` operations of 32 and 64 bits to the mapped addresses, and those hold between
processes. Its plain loads and stores are plain machine accesses; with the order that x86 keeps
(stores in order, loads in order) and with the fences in the atomics of other machines, what was
stored before a release is seen after the acquire that reads it.
"""

import mmap
import os
import secrets
import struct
import time
from collections.abc import Callable
from pathlib import Path

import torch

HEADER_BYTES = 4096
"""First bytes of every heap, which belong to the library, on GPUs too."""

_MAGIC = 0x706B5F68656170  # "pk_heap"
_IDENTITY = struct.Struct("<QQQ")
_IDENTITY_AT = 1536
_MAPPED_AT = 1664
_POLL_S = 0.002


class HeapError(RuntimeError):
    """The ranks could not set up their heap: says which rank waited for what."""


class SharedHeap:
    """One rank's view of all heaps: `bases[r]` is the address of rank r's in this process.

    Made by `join`. `arena` is the own heap, uint8[nbytes], zeroed.
    """

    def __init__(self, rank: int, maps: list[mmap.mmap]) -> None:
        tensors = [torch.frombuffer(each, dtype=torch.uint8) for each in maps]
        self.rank = rank
        self.world_size = len(maps)
        self.device = torch.device("cpu")
        self.bases = tuple(tensor.data_ptr() for tensor in tensors)
        self.arena = tensors[rank]
        self._tensors = tensors

    @classmethod
    def join(
        cls, folder: Path, rank: int, world_size: int, nbytes: int, deadline_s: float
    ) -> "SharedHeap":
        """Meets the other ranks in `folder`, which is private to this run, and maps their heaps.

        The folder is best in memory, e.g. below /dev/shm. Nothing stays in it. Raises HeapError
        when a rank does not come in time or joined with other sizes.
        """
        deadline = time.monotonic() + deadline_s
        own_path = folder / f"heap-{rank}"
        own = _create(own_path, world_size, nbytes)
        try:
            maps = [
                own if r == rank else _open(folder, r, world_size, nbytes, rank, deadline)
                for r in range(world_size)
            ]
            for each in maps:  # through my mapping of theirs
                each[_MAPPED_AT + rank] = 1
            for r in range(world_size):  # through my mapping of mine
                _await(
                    lambda r=r: own[_MAPPED_AT + r] == 1,  # type: ignore[misc]
                    deadline,
                    f"rank {rank} waited for rank {r} to map its heap",
                )
        finally:
            own_path.unlink(missing_ok=True)
        return cls(rank, maps)

    def close(self) -> None:
        """Lets go of the memory; it is unmapped with the last tensor that lies in it."""
        self._tensors.clear()
        self.arena = torch.empty(0, dtype=torch.uint8)


def _create(path: Path, world_size: int, nbytes: int) -> mmap.mmap:
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.ftruncate(descriptor, nbytes)
        heap = mmap.mmap(descriptor, nbytes)
        _IDENTITY.pack_into(heap, _IDENTITY_AT, _MAGIC, world_size, nbytes)
        # Published whole, and never in the place of another's.
        os.link(unfinished, path)
    except FileExistsError:
        raise HeapError(f"{path} exists: each rank joins once, each run in a new folder") from None
    finally:
        os.close(descriptor)
        unfinished.unlink(missing_ok=True)
    return heap


def _open(
    folder: Path, peer: int, world_size: int, nbytes: int, rank: int, deadline: float
) -> mmap.mmap:
    path = folder / f"heap-{peer}"
    _await(path.exists, deadline, f"rank {rank} waited for rank {peer} to join in {folder}")
    descriptor = os.open(path, os.O_RDWR)
    try:
        heap = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)
    found = _IDENTITY.unpack_from(heap, _IDENTITY_AT)
    if found != (_MAGIC, world_size, nbytes):
        raise HeapError(
            f"rank {peer} joined as one of {found[1]} ranks with {found[2]} bytes, rank {rank} as "
            f"one of {world_size} with {nbytes}: give all ranks the same"
        )
    return heap


def _await(ready: Callable[[], bool], deadline: float, what: str) -> None:
    while not ready():
        if time.monotonic() > deadline:
            raise HeapError(f"{what}, and the deadline passed: did that process end early?")
        time.sleep(_POLL_S)
