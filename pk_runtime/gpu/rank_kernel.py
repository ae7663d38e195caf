"""A built kernel on one rank's tensors, one process per GPU: no copies where none are needed.

Tensors that peers read or write must lie in symmetric memory. Those that do are used where they
lie; others are copied once, in the stream of the launch. Tensors that only this rank's kernel
touches are used where they lie in any case, if their rows start at multiples of 16 bytes.
Everything a call does happens in the current stream and may be captured into a CUDA graph.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from pk_runtime.gpu.binding import (
    ALIGNMENT,
    Binding,
    DeviceError,
    Launch,
    LaunchError,
    Library,
    Plan,
    TensorView,
)
from pk_runtime.gpu.symmetric import SymmetricHeap
from pk_runtime.gpu.tensors import bytes_of, extent_of, pitch_of, view_at, view_of
from pk_runtime.interface import TensorShape

__all__ = ["DeviceError", "LaunchError", "RankKernel"]

# Of a wait in a kernel: ranks of a job may be this far apart.
TIMEOUT_S = 60.0
_KEPT = 64  # sets of arguments, one for each set of addresses seen lately
_POLL_S = 0.0005

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class _Place:
    """Where a kernel finds a tensor: every rank's view, and a copy's memory if it is copied."""

    views: tuple[TensorView, ...]
    stage: torch.Tensor | None


class RankKernel:
    """One rank's end of a kernel on tensors of fixed shapes. Collective to make and to call.

    `library` is what `Compiler.library` built, `inputs` and `outputs` give shape and dtype of this
    rank's tensors, the same on every rank. `tensors[name]` is a tensor in symmetric memory for each
    one that peers touch: fill it, or take the result from it, and the call copies nothing.
    `identity` is any text that must be the same on all ranks, e.g. the candidate's digest.

    Raises LaunchError if the kernel refuses the shapes, does not fit the device, or if the ranks
    bring different kernels.
    """

    def __init__(
        self,
        library: Path,
        heap: SymmetricHeap,
        inputs: Mapping[str, TensorShape],
        outputs: Mapping[str, TensorShape],
        *,
        identity: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.heap, self.inputs, self.outputs = heap, dict(inputs), dict(outputs)
        self.device = heap.torch_device
        self._specs = {**self.inputs, **self.outputs}
        loaded = Library(library)
        plan = loaded.plan(
            *(heap.rank, heap.world_size),
            {key: self._views(key, (0,) * heap.world_size) for key in self._specs},
            frozenset(outputs),
        )
        self.name = heap.fresh_name(loaded.name)
        self._require_equal(identity, loaded, plan)
        offsets, size = self._laid_out(plan)
        self._buffer = heap.allocate(self.name, size)
        pointers = self._buffer.pointers
        # Tensors that are not shared get their address with each call.
        self._homes = {
            key: self._views(key, tuple(p + offsets.get(("tensor", key), 0) for p in pointers))
            for key in self._specs
        }
        self.tensors = {
            key: self._buffer.tensor(
                shape, dtype, offset=offsets["tensor", key], pitch=pitch_of(shape, dtype)
            )
            for key, (shape, dtype) in self._specs.items()
            if key in plan.shared
        }
        with torch.cuda.device(self.device):
            self._binding = Binding(
                *(library, heap.rank, heap.world_size, self._homes, frozenset(outputs)),
                lambda kind, key, rank: pointers[rank] + offsets[kind, key],
                timeout_s,
            )
        self._binding.blocks = min(heap.agree(f"blocks of {self.name}", self._binding.blocks))
        self._launches: OrderedDict[tuple[TensorView, ...], Launch] = OrderedDict()
        self._last: torch.cuda.Stream | None = None

    @property
    def blocks(self) -> int:
        """Blocks of a launch, the same on every rank."""
        return self._binding.blocks

    def __call__(self, inputs: Tensors, outputs: Tensors | None = None) -> dict[str, torch.Tensor]:
        """Runs the kernel in the current stream; returns at once.

        Outputs that are not given are new tensors. Pass tensors of symmetric buffers (`tensors`, or
        any of `heap`) to save copies; every rank must then bring the same ones. Every rank must
        call. ValueError for a tensor of another shape, dtype or device.
        """
        return self.bind(inputs, outputs)()

    def bind(
        self, inputs: Tensors, outputs: Tensors | None = None
    ) -> Callable[[], dict[str, torch.Tensor]]:
        """A call on these very tensors, prepared: only copies and the launch are left to do."""
        given = dict(outputs or {})
        with torch.cuda.device(self.device):
            results = {key: given.pop(key, None) for key in self.outputs}
            for key, (shape, dtype) in self.outputs.items():
                if results[key] is None:
                    results[key] = torch.empty(shape, dtype=dtype, device=self.device)
            made = {key: tensor for key, tensor in results.items() if tensor is not None}
            self._check({**inputs}, self.inputs, "input")
            self._check({**made, **given}, self.outputs, "output")
            places = {key: self._place(key, tensor) for key, tensor in {**inputs, **made}.items()}
            launch = self._launch(places)
        before = [(p.stage, inputs[k]) for k, p in places.items() if k in inputs]
        after = [(made[k], p.stage) for k, p in places.items() if k in made]

        def call() -> dict[str, torch.Tensor]:
            with torch.cuda.device(self.device):
                stream = self._ordered()
                for stage, tensor in before:
                    if stage is not None:
                        stage.copy_(tensor)
                launch.launch(stream.cuda_stream)
                for tensor, result in after:
                    if result is not None:
                        tensor.copy_(result)
            return made

        return call

    def failures(self) -> list[str]:
        """What this rank's blocks wrote before they gave up, in words."""
        return self._binding.failures()

    def synchronize(self, timeout_s: float = 2 * TIMEOUT_S) -> None:
        """Returns when the current stream has done its work.

        DeviceError, with the reports, if a kernel gave up or is not done in time; the process's GPU
        context is then lost: start new processes, on every rank.
        """
        stream = torch.cuda.current_stream(self.device)
        deadline = time.monotonic() + timeout_s
        try:
            while not stream.query():
                if time.monotonic() > deadline:
                    late = TimeoutError(f"not done within {timeout_s:g} s")
                    raise DeviceError(self.failures(), late)
                time.sleep(_POLL_S)
        except DeviceError:
            raise
        except RuntimeError as error:
            raise DeviceError(self.failures(), error) from error

    def close(self) -> None:
        """Frees the kernel's memory of this process. Not collective; nothing of it may run."""
        self._binding.close()
        self.heap.free(self.name)

    def _views(self, key: str, addresses: tuple[int, ...]) -> tuple[TensorView, ...]:
        shape, dtype = self._specs[key]
        return tuple(view_at(at, shape, dtype, pitch_of(shape, dtype)) for at in addresses)

    def _laid_out(self, plan: Plan) -> tuple[dict[tuple[str, str], int], int]:
        """Where everything lies in the kernel's one buffer, and the buffer's size."""
        wanted = [(("tensor", key), bytes_of(*self._specs[key])) for key in sorted(plan.shared)]
        wanted += [((needed.kind, needed.name), needed.nbytes) for needed in plan.needed]
        offsets, end = {}, 0
        for what, nbytes in wanted:
            offsets[what] = end
            end += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return offsets, max(end, 1)

    def _require_equal(self, identity: str, library: Library, plan: Plan) -> None:
        shapes = {k: [list(shape), str(dtype)] for k, (shape, dtype) in self._specs.items()}
        needed = [[n.kind, n.name, n.nbytes] for n in plan.needed]
        mine = [identity, library.name, library.about.comm_sms, shapes, needed]
        for rank, theirs in enumerate(self.heap.agree(f"make {self.name}", mine)):
            if theirs != mine:
                raise LaunchError(
                    f"rank {rank} makes another kernel than rank {self.heap.rank}, or for other "
                    f"shapes: {theirs[:4]} and {mine[:4]}"
                )

    def _check(self, tensors: Tensors, specs: Mapping[str, TensorShape], side: str) -> None:
        if set(tensors) != set(specs):
            raise ValueError(f"the {side}s are {', '.join(specs)}, not {', '.join(tensors)}")
        for key, (shape, dtype) in specs.items():
            tensor = tensors[key]
            if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype:
                raise ValueError(
                    f"{side} {key!r} is {list(tensor.shape)} {tensor.dtype}; this kernel was made "
                    f"for {list(shape)} {dtype}"
                )
            if tensor.device != self.device:
                raise ValueError(
                    f"{side} {key!r} is on {tensor.device}, and this rank's device is {self.device}"
                )

    def _place(self, key: str, tensor: torch.Tensor) -> _Place:
        view = view_of(tensor)
        if key not in self.tensors:
            if view is not None:
                return _Place((view,) * self.heap.world_size, None)
            shape, dtype = self._specs[key]
            pitch = pitch_of(shape, dtype)
            padded = torch.empty(*shape[:-1], pitch, dtype=dtype, device=tensor.device)
            views = self._views(key, (padded.data_ptr(),) * self.heap.world_size)
            return _Place(views, padded[..., : shape[-1]])
        found = self.heap.locate(tensor.data_ptr(), extent_of(tensor)) if view else None
        if view is None or found is None:
            return _Place(self._homes[key], self.tensors[key])
        buffer, offset = found
        shape, dtype = self._specs[key]
        return _Place(
            tuple(view_at(p + offset, shape, dtype, view.pitch) for p in buffer.pointers), None
        )

    def _launch(self, places: Mapping[str, _Place]) -> Launch:
        views = {key: place.views for key, place in places.items()}
        key = tuple(view for name in self._specs for view in views[name])
        launch = self._launches.pop(key, None) or self._binding.rebind(views)
        self._launches[key] = launch
        if len(self._launches) > _KEPT:
            self._launches.popitem(last=False)
        return launch

    def _ordered(self) -> torch.cuda.Stream:
        """The current stream, behind what this kernel does in another one: launches of one kernel
        never run at the same time. A graph's replays are the caller's to order."""
        stream = torch.cuda.current_stream()
        if not torch.cuda.is_current_stream_capturing():
            if self._last is not None and self._last != stream:
                stream.wait_stream(self._last)
            self._last = stream
        return stream
