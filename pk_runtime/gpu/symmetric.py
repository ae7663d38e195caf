"""Symmetric memory: buffers that every rank has, and that every rank has mapped.

One process per rank, each with one GPU of the same machine. An allocation is collective: created,
zeroed, waited for, then published to the peers, and tried in both directions before anybody uses
it. Closing is not collective, and destructors communicate with nobody: a peer that still uses a
buffer keeps its memory alive through its own mapping.
"""

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pk_runtime.gpu.driver import (
    DriverError,
    can_access_peer,
    device_count,
    device_uuid,
    driver,
    read,
    write,
)
from pk_runtime.gpu.memory import Allocation, rounded
from pk_runtime.gpu.rendezvous import Answer, Rendezvous, new_run_folder
from pk_runtime.gpu.tensors import extent_of, tensor_at

__all__ = ["SymmetricBuffer", "SymmetricError", "SymmetricHeap", "heap_of", "new_run_folder"]

DEADLINE_S = 60.0
_CANARY_BYTES = 32


class SymmetricError(RuntimeError):
    """Memory that cannot be shared: the ranks disagree, or a GPU does not reach another one."""


class SymmetricBuffer:
    """A buffer of `nbytes` on every rank. `pointers[r]` is rank r's, as this process maps it."""

    def __init__(self, name: str, rank: int, device: int, parts: Sequence[Allocation]) -> None:
        self.name, self.rank, self.device = name, rank, device
        self._parts = tuple(parts)
        self.nbytes = parts[rank].nbytes
        self.pointers = tuple(part.address for part in parts)

    def tensor(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        offset: int = 0,
        pitch: int | None = None,
    ) -> torch.Tensor:
        """This rank's memory from byte `offset` as a tensor, without a copy; see `tensor_at`.

        It must not be used after the buffer is closed.
        """
        start = self.pointers[self.rank] + offset
        made = tensor_at(start, shape, dtype, device=self.device, pitch=pitch, owner=self)
        if offset < 0 or offset + extent_of(made) > self.nbytes:
            raise SymmetricError(
                f"a tensor {list(shape)} at byte {offset} does not lie within the {self.nbytes} "
                f"bytes of buffer {self.name!r}"
            )
        return made

    def close(self) -> None:
        """Ends this process's use of the buffer on all ranks. Nothing may run that uses it."""
        for part in self._parts:
            part.close()


class SymmetricHeap:
    """One rank's end of the symmetric memory of `world_size` processes.

    Make it with `join` or `from_group`, on every rank. `allocate`, `barrier` and `agree` are
    collective: every rank calls them in the same order; who does not is named at the deadline.
    """

    def __init__(self, meeting: Rendezvous, device: int) -> None:
        self._meeting = meeting
        self.rank, self.world_size, self.device = meeting.rank, meeting.world_size, device
        self._buffers: dict[str, SymmetricBuffer] = {}
        self._names = 0

    @property
    def torch_device(self) -> torch.device:
        """This rank's device as torch names it."""
        return torch.device("cuda", self.device)

    @staticmethod
    def join(
        folder: Path, rank: int, world_size: int, device: int, deadline_s: float = DEADLINE_S
    ) -> "SymmetricHeap":
        """Meets the other ranks in a folder that `new_run_folder` made and all were told.

        `deadline_s` holds for this and for every later step. RendezvousError if a rank is missing,
        SymmetricError if the GPUs cannot reach each other, DriverError without a driver.
        """
        driver(device)
        meeting = Rendezvous.join(folder, rank, world_size, deadline_s=deadline_s)
        try:
            _check_devices(meeting, device)
        except BaseException:
            meeting.close()
            raise
        return SymmetricHeap(meeting, device)

    @staticmethod
    def from_group(
        group: dist.ProcessGroup | None = None,
        *,
        device: int | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> "SymmetricHeap":
        """The heap of exactly the ranks of a torch process group, numbered as in the group.

        `device` is torch's current one if left out. The group is used once, to tell the folder.
        """
        members = group if group is not None else dist.group.WORLD
        if members is None:
            raise SymmetricError("there is no process group: call init_process_group first")
        own = torch.cuda.current_device() if device is None else device
        rank = dist.get_rank(members)
        told = [str(new_run_folder()) if rank == 0 else ""]
        through = torch.device("cuda", own) if "nccl" in dist.get_backend(members) else None
        dist.broadcast_object_list(told, group=members, group_src=0, device=through)
        folder = Path(told[0])
        try:
            return SymmetricHeap.join(
                folder, rank, dist.get_world_size(members), own, deadline_s=deadline_s
            )
        finally:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def allocate(self, name: str, nbytes: int) -> SymmetricBuffer:
        """A new buffer, zeroed on every rank. Collective; sizes must agree.

        SymmetricError if they do not or if the memory does not do what it should.
        """
        if name in self._buffers:
            raise SymmetricError(f"there is a buffer {name!r} already")
        sizes = [a.body.get("nbytes") for a in self._exchange(f"allocate {name}", nbytes=nbytes)]
        if any(size != nbytes for size in sizes):
            raise SymmetricError(f"the ranks ask for different sizes of {name!r}: {sizes}")
        parts: dict[int, Allocation] = {}
        try:
            self._publish(name, nbytes, parts)
            buffer = SymmetricBuffer(
                name, self.rank, self.device, [parts[r] for r in range(self.world_size)]
            )
            self._try(name, buffer)
        except BaseException:
            for part in parts.values():
                part.close()
            raise
        self._buffers[name] = buffer
        return buffer

    def fresh_name(self, stem: str) -> str:
        """A name that no buffer has had; the same on every rank that asks equally often."""
        self._names += 1
        return f"{stem} {self._names}"

    def locate(self, address: int, nbytes: int) -> tuple[SymmetricBuffer, int] | None:
        """The buffer, and the byte in it, where this rank's memory lies; None if it is foreign."""
        for buffer in self._buffers.values():
            offset = address - buffer.pointers[self.rank]
            if offset >= 0 and offset + nbytes <= buffer.nbytes:
                return buffer, offset
        return None

    def agree(self, what: str, value: Any) -> list[Any]:
        """Every rank's `value` (JSON) in rank order. Collective."""
        return [answer.body.get("value") for answer in self._exchange(what, value=value)]

    def barrier(self) -> None:
        """Returns when every rank's process has called it. Says nothing of work on the devices."""
        self._exchange("a barrier")

    def free(self, name: str) -> None:
        """Closes one buffer. Not collective: peers keep their own mappings."""
        self._buffers.pop(name).close()

    def close(self) -> None:
        """Closes all buffers and the channels, once is enough. Not collective.

        Nothing of this process may run on the device that uses them.
        """
        for buffer in self._buffers.values():
            buffer.close()
        self._buffers = {}
        self._meeting.close()

    def _exchange(
        self,
        what: str,
        files: Mapping[int, int] | None = None,
        expected: int = 0,
        **body: Any,
    ) -> list[Answer]:
        return self._meeting.exchange(what, body, files, expected)

    def _publish(self, name: str, nbytes: int, parts: dict[int, Allocation]) -> None:
        """Makes this rank's memory, sends it to every peer and maps theirs."""
        others = [r for r in range(self.world_size) if r != self.rank]
        files: dict[int, int] = {}
        problem = ""
        try:
            try:
                own = parts[self.rank] = Allocation.create(self.device, nbytes)
                own.zero()
                write(own.address, _mark(name, self.rank, self.rank))
                for peer in others:
                    files[peer] = own.export()
            except DriverError as error:
                problem = f"has no memory for {name!r}: {error}"
            answers = self._exchange(f"publish {name}", files, expected=1, problem=problem)
        finally:
            for descriptor in files.values():
                os.close(descriptor)
        pending = {rank: answer.files[0] for rank, answer in enumerate(answers) if answer.files}
        try:
            _raise_for(answers)
            for peer in others:
                parts[peer] = Allocation.receive(pending.pop(peer), nbytes, self.device)
        finally:
            for descriptor in pending.values():
                os.close(descriptor)

    def _try(self, name: str, buffer: SymmetricBuffer) -> None:
        """Reads every peer's mark, leaves one with every peer, looks for theirs; then all zeros."""
        own = buffer.pointers[self.rank]
        for peer, address in enumerate(buffer.pointers):
            self._expect(_mark(name, peer, peer), address, f"rank {peer}'s memory of {name!r}")
        self._exchange(f"read {name}")
        for peer, address in enumerate(buffer.pointers):
            write(address + _CANARY_BYTES * self.rank, _mark(name, self.rank, peer))
        self._exchange(f"write {name}")
        for peer in range(self.world_size):
            at = own + _CANARY_BYTES * peer
            self._expect(_mark(name, peer, self.rank), at, f"what rank {peer} wrote to {name!r}")
        self._exchange(f"look {name}")
        write(own, bytes(_CANARY_BYTES * self.world_size))
        self._exchange(f"ready {name}")

    def _expect(self, mark: bytes, address: int, what: str) -> None:
        if (found := read(address, _CANARY_BYTES)) != mark:
            raise SymmetricError(
                f"rank {self.rank} does not see {what}: expected {mark.hex()[:16]}, found "
                f"{found.hex()[:16]}; the peer mapping of this machine does not work"
            )


_shared: dict[dist.ProcessGroup, SymmetricHeap] = {}


def heap_of(group: dist.ProcessGroup | None = None) -> SymmetricHeap:
    """The one heap of a process group, made at the first call, on all its ranks together."""
    members = group if group is not None else dist.group.WORLD
    if members is None:
        raise SymmetricError("there is no process group: call init_process_group first")
    if members not in _shared:
        _shared[members] = SymmetricHeap.from_group(members)
    return _shared[members]


def _mark(name: str, source: int, to: int) -> bytes:
    return hashlib.sha256(f"{name} from {source} to {to}".encode()).digest()[:_CANARY_BYTES]


def _check_devices(meeting: Rendezvous, device: int) -> None:
    """Every rank must see every rank's GPU and reach its memory."""
    seen = {device_uuid(number): number for number in range(device_count())}
    own = {"uuid": device_uuid(device), "page": rounded(device, 1)}
    answers = meeting.exchange("which GPUs", own)
    problem = ""
    for peer, answer in enumerate(answers):
        number = seen.get(str(answer.body.get("uuid")))
        if number is None:
            problem = f"does not see the GPU of rank {peer}: leave CUDA_VISIBLE_DEVICES the same"
        elif number != device and not can_access_peer(device, number):
            problem = f"has a GPU that does not reach the memory of rank {peer}'s"
        elif answer.body.get("page") != own["page"]:
            problem = f"has memory pages of another size than rank {peer}"
    _raise_for(meeting.exchange("GPUs checked", {"problem": problem}))


def _raise_for(answers: Sequence[Answer]) -> None:
    """A rank's problem is told to all, so that nobody waits for one that gave up."""
    for rank, answer in enumerate(answers):
        if answer.body.get("problem"):
            raise SymmetricError(f"rank {rank} {answer.body['problem']}")
