"""A built kernel as an operator of torch: under torch.compile, in CUDA graphs, by name.

    kernel = GroupKernel(library, heap, interface, name="gemm_reducescatter")
    gemm_reducescatter = operator(kernel)         # torch.ops.pkforge.gemm_reducescatter_<hash>
    c = gemm_reducescatter(a, b)                  # this rank's tensors; every rank calls

The operator takes the interface's inputs in its order and returns the outputs as new tensors: one,
or a tuple. On meta and fake tensors it only says their shapes, from the interface.
"""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

import torch

from pk_runtime.gpu.group_kernel import GroupKernel, output_shapes
from pk_runtime.interface import Interface

NAMESPACE = "pkforge"

Result = torch.Tensor | tuple[torch.Tensor, ...]

# A registration lives as long as its Library object.
_registered: dict[str, "_Operator"] = {}


class _Operator:
    """One registration. The kernel behind it can be exchanged, e.g. after a group is made anew."""

    def __init__(self, name: str, interface: Interface, world_size: int) -> None:
        self.kernel: GroupKernel | None = None
        self._library = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
        self._interface, self._world_size = interface, world_size
        arguments = ", ".join(f"Tensor {key}" for key in interface.inputs)
        results = ", ".join("Tensor" for _ in interface.outputs)
        several = len(interface.outputs) > 1
        schema = f"{name}({arguments}) -> {f'({results})' if several else results}"
        self._library.define(schema)  # type: ignore[no-untyped-call]
        self._library.impl(name, self._run, "CUDA")  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"{NAMESPACE}::{name}", self._fake, lib=self._library)
        self.call = getattr(getattr(torch.ops, NAMESPACE), name).default

    def _run(self, *tensors: torch.Tensor) -> Result:
        if self.kernel is None:
            raise RuntimeError("the kernel of this operator was closed: call operator() again")
        made = self.kernel(**dict(zip(self._interface.inputs, tensors, strict=True)))
        return _result([made[key] for key in self._interface.outputs])

    def _fake(self, *tensors: torch.Tensor) -> Result:
        inputs = dict(zip(self._interface.inputs, tensors, strict=True))
        shapes = output_shapes(self._interface, inputs, self._world_size)
        return _result(
            [tensors[0].new_empty(shape, dtype=dtype) for shape, dtype in shapes.values()]
        )


def operator(kernel: GroupKernel) -> Callable[..., Any]:
    """Registers a kernel as `torch.ops.pkforge.<name>_<hash>` and returns the operator.

    The same kernel on a group of the same size gets the same name in every process, and a second
    registration only exchanges what is called.
    """
    return register(kernel.name, kernel.identity, kernel.interface, kernel.heap.world_size, kernel)


def register(
    name: str,
    identity: str,
    interface: Interface,
    world_size: int,
    kernel: GroupKernel | None = None,
) -> Callable[..., Any]:
    """As `operator`. Without a kernel it is known by its shapes only, for export and tests."""
    full = operator_name(name, identity, interface, world_size)
    entry = _registered.get(full)
    if entry is None:
        entry = _registered[full] = _Operator(full, interface, world_size)
    entry.kernel = kernel
    call: Callable[..., Any] = entry.call
    return call


def operator_name(name: str, identity: str, interface: Interface, world_size: int) -> str:
    """The name that a kernel is registered by: the same for the same kernel and world size."""
    content = json.dumps([identity, interface.to_json(), world_size]).encode()
    stem = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_") or "kernel"
    return f"{stem}_{hashlib.sha256(content).hexdigest()[:12]}"


def _result(tensors: list[torch.Tensor]) -> Result:
    return tensors[0] if len(tensors) == 1 else tuple(tensors)
