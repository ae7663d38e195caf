"""A built kernel on the ranks of one group, for tensors of any shape that it takes.

Per set of shapes a RankKernel is made at the first call, together on all ranks; later calls find
it. So the first call with new shapes cannot be captured into a CUDA graph.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from pk_runtime.gpu.rank_kernel import TIMEOUT_S, LaunchError, RankKernel
from pk_runtime.gpu.symmetric import SymmetricHeap
from pk_runtime.interface import Interface, InterfaceError, TensorShape

Key = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


class GroupKernel:
    """One rank's end. `library` is what `Compiler.library` built of a candidate with `identity`
    (any text, e.g. its digest, that the ranks must agree on); `interface` says the shapes."""

    def __init__(
        self,
        library: Path,
        heap: SymmetricHeap,
        interface: Interface,
        *,
        name: str = "kernel",
        identity: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.library, self.heap, self.interface = library, heap, interface
        self.name, self.identity = name, identity or _content(library)
        self._timeout_s = timeout_s
        self._made: dict[Key, RankKernel] = {}

    def __call__(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Runs the kernel on this rank's tensors in the current stream; returns new outputs.

        Every rank must call with tensors of the same shapes. InterfaceError for shapes that do not
        fit together, LaunchError if the kernel refuses them.
        """
        return self.on(inputs)(inputs)

    def on(self, inputs: Mapping[str, torch.Tensor]) -> RankKernel:
        """The kernel for tensors of these shapes, made at the first time on all ranks together."""
        key = tuple((name, tuple(t.shape), t.dtype) for name, t in sorted(inputs.items()))
        kernel = self._made.get(key)
        if kernel is None:
            shapes = output_shapes(self.interface, inputs, self.heap.world_size)
            if torch.cuda.is_current_stream_capturing():
                raise LaunchError(
                    f"{self.name}: call it once with tensors of these shapes before a CUDA graph "
                    "is captured: the first call makes symmetric memory on all ranks"
                )
            given = {name: (tuple(t.shape), t.dtype) for name, t in inputs.items()}
            kernel = self._made[key] = RankKernel(
                *(self.library, self.heap, given, shapes),
                identity=self.identity,
                timeout_s=self._timeout_s,
            )
        return kernel

    def failures(self) -> list[str]:
        """What this rank's blocks wrote before they gave up, in words."""
        return [text for kernel in self._made.values() for text in kernel.failures()]

    def close(self) -> None:
        """Frees the memory of this process; the heap stays. Not collective; nothing may run."""
        for kernel in self._made.values():
            kernel.close()
        self._made = {}


def output_shapes(
    interface: Interface, inputs: Mapping[str, torch.Tensor], world_size: int
) -> dict[str, TensorShape]:
    """Shapes and dtypes of the outputs on one rank; InterfaceError for inputs that do not fit."""
    dims = interface.solve({name: _shape(t) for name, t in inputs.items()}, world_size)
    for name, tensor in inputs.items():
        if tensor.dtype != interface.inputs[name].dtype:
            raise InterfaceError(
                f"input {name!r} is {tensor.dtype}, not {interface.inputs[name].dtype}"
            )
    return interface.output_shapes(dims)


def _shape(tensor: torch.Tensor) -> Sequence[int]:
    return tuple(tensor.shape)


def _content(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()
