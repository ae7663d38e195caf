"""All ranks in one process, one GPU each: the simplest launcher, for tests and debuggers.

Peers' memory is reached through peer access between the devices of the process. A kernel that
gives up (a wait ran out, a tile out of range) ends the process's CUDA contexts: read the report,
then start a new process.
"""

import ctypes as c
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pk_runtime.gpu.abi import (
    ABI_VERSION,
    BOUND,
    FAILURES_OFFSET,
    FOUND,
    MEMORY,
    OTHER_DIRECTION,
    TENSOR,
    TIMEOUT_OFFSET,
    UNKNOWN,
    Bound,
    Description,
    Failure,
    HostCalls,
    TensorInfo,
    describe,
)

_TYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2, torch.int32: 3}
_ALIGNMENT = 256
_PITCH_BYTES = 16
_MESSAGE_BYTES = 2048


class LaunchError(RuntimeError):
    """The kernel refused these shapes, or the driver refused the launch."""


class DeviceError(RuntimeError):
    """A kernel gave up on a device. `reports` says who waited for what, or which tile was wrong."""

    def __init__(self, reports: Sequence[str], cause: BaseException | None) -> None:
        self.reports = tuple(reports)
        super().__init__("; ".join(self.reports) or f"a kernel failed without a record: {cause}")


class OneProcess:
    """One kernel on tensors of fixed shapes: `tensors[name][rank]` are its inputs and outputs.

    `library` is what `Compiler.library` built. Shapes are per rank, the same on all ranks; rank r
    runs on device r. Rows of the tensors are padded to 16 bytes, so they may be strided views.
    Raises LaunchError, and DeviceError from `synchronize`.
    """

    def __init__(
        self,
        library: Path,
        inputs: Mapping[str, Sequence[int]],
        outputs: Mapping[str, Sequence[int]],
        *,
        world_size: int,
        dtype: torch.dtype = torch.bfloat16,
        timeout_s: float = 5.0,
    ) -> None:
        self.world_size = world_size
        self._library = c.CDLL(str(library))
        self._about = Description.in_dll(self._library, "pk_description")
        if self._about.abi != ABI_VERSION:
            raise LaunchError(f"{library} was built by another version of pkforge: build it again")
        self._dtype = dtype
        self._outputs = frozenset(outputs)
        self._shapes = {name: tuple(s) for name, s in {**inputs, **outputs}.items()}
        self._memory: dict[tuple[bytes, bytes, int], torch.Tensor] = {}
        self._bound: dict[int, Bound] = {}
        _enable_peer_access(world_size)
        self._buffers = {
            name: [self._padded(shape, rank) for rank in range(world_size)]
            for name, shape in self._shapes.items()
        }
        self.tensors = {
            name: [b[:, : shape[-1]].view(*shape[:-1], shape[-1]) for b in self._buffers[name]]
            for name, shape in self._shapes.items()
        }
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        self._failures = [
            torch.zeros(sms * 4 * self._about.failure_bytes, dtype=torch.uint8).pin_memory()
            for _ in range(world_size)
        ]
        self._calls = (TENSOR(self._tensor), MEMORY(self._symmetric), BOUND(self._note))
        self._ranks = [self._set_up(rank, timeout_s) for rank in range(world_size)]
        self.blocks = min([sms, *(self._prepare(rank) for rank in range(world_size))])

    def launch(self) -> None:
        """Starts the kernel on every rank's current stream; returns at once."""
        for rank, (_, arguments, run) in enumerate(self._ranks):
            with torch.cuda.device(rank):
                stream = c.c_void_p(torch.cuda.current_stream(rank).cuda_stream)
                error = self._library.pk_launch(stream, self.blocks, 1, arguments, c.byref(run))
            if error:
                raise LaunchError(f"rank {rank}: the launch failed with CUDA error {error}")

    def synchronize(self) -> None:
        """Returns when every rank has finished; DeviceError if a kernel gave up."""
        try:
            for rank in range(self.world_size):
                torch.cuda.synchronize(rank)
        except RuntimeError as error:
            raise DeviceError(self._reports(), error) from error

    def _padded(self, shape: tuple[int, ...], rank: int) -> torch.Tensor:
        unit = _PITCH_BYTES // self._dtype.itemsize
        pitch = -(-shape[-1] // unit) * unit
        rows = math.prod(shape[:-1])
        return torch.zeros(rows, pitch, dtype=self._dtype, device=f"cuda:{rank}")

    def _set_up(self, rank: int, timeout_s: float) -> tuple[Any, c.c_void_p, Any]:
        raw = c.create_string_buffer(self._about.args_bytes + _ALIGNMENT)
        arguments = c.c_void_p(-(-c.addressof(raw) // _ALIGNMENT) * _ALIGNMENT)
        run = c.create_string_buffer(self._about.launch_bytes)
        message = c.create_string_buffer(_MESSAGE_BYTES)
        calls = HostCalls(ABI_VERSION, rank, self.world_size, 0, None, *self._calls, None)
        with torch.cuda.device(rank):
            refused = self._library.pk_setup(
                c.byref(calls), arguments, c.byref(run), message, _MESSAGE_BYTES
            )
        if refused:
            raise LaunchError(message.value.decode(errors="replace"))
        c.c_uint64.from_buffer(run, TIMEOUT_OFFSET).value = int(timeout_s * 1e9)
        c.c_void_p.from_buffer(run, FAILURES_OFFSET).value = self._failures[rank].data_ptr()
        return raw, arguments, run

    def _prepare(self, rank: int) -> int:
        resident = c.c_int()
        with torch.cuda.device(rank):
            error = self._library.pk_prepare(c.byref(resident))
        if error or resident.value < 1:
            raise LaunchError(f"rank {rank}: the kernel does not fit the device (error {error})")
        return resident.value

    def _tensor(
        self, _context: object, name: bytes, rank: int, output: int, _peers: int, info: Any
    ) -> int:
        key = name.decode(errors="replace")
        shape = self._shapes.get(key)
        if shape is None:
            return UNKNOWN
        if (key in self._outputs) != bool(output):
            return OTHER_DIRECTION
        buffer = self._buffers[key][rank]
        info[0] = TensorInfo(
            buffer.data_ptr(),
            _TYPES[self._dtype],
            math.prod(shape[:-2]),
            shape[-2] if len(shape) > 1 else 1,
            shape[-1],
            buffer.shape[1],
        )
        return FOUND

    def _symmetric(self, _context: object, kind: bytes, name: bytes, rank: int, size: int) -> int:
        key = (kind, name, rank)
        if key not in self._memory:
            self._memory[key] = torch.zeros(
                size + _ALIGNMENT, dtype=torch.uint8, device=f"cuda:{rank}"
            )
            torch.cuda.synchronize(rank)  # zeroed before any peer can write to it
        return -(-self._memory[key].data_ptr() // _ALIGNMENT) * _ALIGNMENT

    def _note(self, _context: object, number: int, kind: bytes, name: bytes) -> None:
        self._bound[number] = Bound(kind.decode(errors="replace"), name.decode(errors="replace"))

    def _reports(self) -> list[str]:
        size = c.sizeof(Failure)
        found = []
        for records in self._failures:
            data = bytes(records.numpy())
            for at in range(0, len(data), size):
                failure = Failure.from_buffer_copy(data, at)
                if failure.kind:
                    found.append(describe(failure, self._bound))
        return found


def _enable_peer_access(world_size: int) -> None:
    """A copy between two devices makes torch enable peer access between them."""
    if torch.cuda.device_count() < world_size:
        have = torch.cuda.device_count()
        raise LaunchError(f"{world_size} ranks need {world_size} GPUs, and there are {have}")
    for a in range(world_size):
        for b in range(world_size):
            if a != b and not torch.cuda.can_device_access_peer(a, b):
                raise LaunchError(f"device {a} cannot reach the memory of device {b}")
            torch.zeros(1, device=f"cuda:{a}").copy_(torch.zeros(1, device=f"cuda:{b}"))
