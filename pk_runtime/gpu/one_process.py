"""All ranks in one process: the simplest launcher, for tests and debuggers.

Peers' memory is reached through peer access between the devices of the process. Several ranks may
share a GPU, so that a debugger or a checker needs only one. A kernel that gives up (a wait ran out,
a tile out of range) ends the process's CUDA contexts: read the report, then start a new process.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from pk_runtime.gpu.binding import ALIGNMENT, Binding, DeviceError, LaunchError, Library, TensorView
from pk_runtime.gpu.driver import driver
from pk_runtime.gpu.tensors import pitch_of, view_at

__all__ = ["DeviceError", "LaunchError", "OneProcess"]


class OneProcess:
    """One kernel on tensors of fixed shapes: `tensors[name][rank]` are its inputs and outputs.

    `library` is what `Compiler.library` built. Shapes are per rank, the same on all ranks; rank r
    runs on `devices[r]`, device r if left out. Rows of the tensors are padded to 16 bytes, so they
    may be strided views. Raises LaunchError, and DeviceError from `synchronize`.
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
        devices: Sequence[int] | None = None,
    ) -> None:
        self.world_size = world_size
        self.devices = tuple(range(world_size) if devices is None else devices)
        if len(self.devices) != world_size:
            raise LaunchError(f"{world_size} ranks need as many devices, not {len(self.devices)}")
        _enable_peer_access(self.devices)
        self._memory: dict[tuple[str, str, int], torch.Tensor] = {}
        shapes = {name: tuple(s) for name, s in {**inputs, **outputs}.items()}
        views: dict[str, list[TensorView]] = {}
        self.tensors: dict[str, list[torch.Tensor]] = {}
        for name, shape in shapes.items():
            pitch = pitch_of(shape, dtype)
            rows = [
                torch.zeros(math.prod(shape[:-1]), pitch, dtype=dtype, device=f"cuda:{device}")
                for device in self.devices
            ]
            self.tensors[name] = [r[:, : shape[-1]].view(shape) for r in rows]
            views[name] = [view_at(r.data_ptr(), shape, dtype, pitch) for r in rows]
        share = max(Counter(self.devices).values())
        plan = Library(library).plan(0, world_size, views, frozenset(outputs))
        for rank, device in enumerate(self.devices):
            for needed in plan.needed:
                self._memory[needed.kind, needed.name, rank] = torch.zeros(
                    needed.nbytes + ALIGNMENT, dtype=torch.uint8, device=f"cuda:{device}"
                )
        for device in set(self.devices):
            torch.cuda.synchronize(device)  # zeroed before any peer can write to it
        self._ranks = []
        for rank, device in enumerate(self.devices):
            with torch.cuda.device(device):
                driver(device)
                self._ranks.append(
                    Binding(
                        *(library, rank, world_size, views, frozenset(outputs), self._address),
                        timeout_s=timeout_s,
                        cooperative=share == 1,
                    )
                )
        self.blocks = min(binding.most_blocks for binding in self._ranks) // share
        for binding in self._ranks:
            binding.blocks = self.blocks
        # Ranks that share a device run at the same time only in streams of their own.
        self._streams = [_stream(d) if share > 1 else None for d in self.devices]

    def launch(self) -> None:
        """Starts the kernel on every rank, in order of its device's current stream; returns at
        once."""
        for binding, device, own in zip(self._ranks, self.devices, self._streams, strict=True):
            with torch.cuda.device(device):
                current = torch.cuda.current_stream(device)
                if own is not None:
                    own.wait_stream(current)
                binding.launch((own or current).cuda_stream)
        for device, own in zip(self.devices, self._streams, strict=True):
            if own is not None:
                torch.cuda.current_stream(device).wait_stream(own)

    def synchronize(self) -> None:
        """Returns when every rank has finished; DeviceError if a kernel gave up."""
        try:
            for device in set(self.devices):
                torch.cuda.synchronize(device)
        except RuntimeError as error:
            reports = [report for binding in self._ranks for report in binding.failures()]
            raise DeviceError(reports, error) from error

    def _address(self, kind: str, name: str, rank: int) -> int:
        return -(-self._memory[kind, name, rank].data_ptr() // ALIGNMENT) * ALIGNMENT


def _stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _enable_peer_access(devices: Sequence[int]) -> None:
    """A copy between two devices makes torch enable peer access between them."""
    have = torch.cuda.device_count()
    if have <= max(devices):
        raise LaunchError(
            f"{len(devices)} ranks on devices {sorted(set(devices))} need {max(devices) + 1} "
            f"GPUs, and there are {have}"
        )
    for a in set(devices):
        for b in set(devices):
            if a != b and not torch.cuda.can_device_access_peer(a, b):
                raise LaunchError(f"device {a} cannot reach the memory of device {b}")
            torch.zeros(1, device=f"cuda:{a}").copy_(torch.zeros(1, device=f"cuda:{b}"))
