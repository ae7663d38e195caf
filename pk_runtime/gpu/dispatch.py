"""Collectives and fused operators that are never slower than torch.distributed.

    comm = Dispatcher(group, "h200x4")
    y = comm.all_reduce(x)
    print(comm.explain("all_reduce", x.nbytes))

A table (dispatch_table.py) says by size which kernel was measured to be the fastest. Where it says
NCCL, and for tensors that the kernels do not take, torch.distributed is called, and `explain` says
so. Results are new tensors. Every rank calls the same operations in the same order, with tensors of
the same shapes; what a call does happens in the current stream and may be captured into a CUDA
graph once a call with the same shapes has been made before.
"""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import Compiler
from pk_runtime.gpu.binding import RefusedError
from pk_runtime.gpu.dispatch_table import (
    NOT_MEASURED,
    OPERATIONS,
    Row,
    Table,
    load_dispatch,
    read_dispatch,
    write_dispatch,
)
from pk_runtime.gpu.group_kernel import GroupKernel
from pk_runtime.gpu.symmetric import heap_of
from pk_runtime.interface import Interface
from pk_runtime.kernels import shipped_kernel
from pk_runtime.sheet import load_sheet

__all__ = ["Dispatcher", "Row", "Table", "load_dispatch", "read_dispatch", "write_dispatch"]

# A flat tensor is given to a kernel as rows of one of these widths, the first that divides it.
_WIDTHS = (1024, 512, 256, 128, 64)

Tensors = dict[str, torch.Tensor]


def _interface(inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Interface:
    def tensors(side: Mapping[str, str]) -> list[dict[str, Any]]:
        return [
            {"name": name, "shape": shape.split(), "dtype": "bfloat16"}
            for name, shape in side.items()
        ]

    return Interface.from_json({"inputs": tensors(inputs), "outputs": tensors(outputs)})


# The tensors that the shipped kernels of an operation bind, on one rank.
INTERFACES: dict[str, Interface] = {
    "all_reduce": _interface({"x": "M N"}, {"y": "M N"}),
    "all_gather": _interface({"x": "M N"}, {"y": "W M N"}),
    "reduce_scatter": _interface({"x": "M N"}, {"y": "M/W N"}),
    "all_to_all": _interface({"x": "W M N"}, {"y": "W M N"}),
    "gemm_reduce_scatter": _interface({"a": "M K", "b": "K N"}, {"c": "M/W N"}),
    "gemm_all_reduce": _interface({"a": "M K", "b": "K N"}, {"c": "M N"}),
    "all_gather_gemm": _interface({"a": "M K", "b": "K N"}, {"c": "M*W N"}),
}


def _either(new: str, old: str) -> Callable[..., Any]:
    """torch 2.13 renames two collectives; the old names are all that torch 2.9 to 2.12 have."""
    function: Callable[..., Any] = getattr(dist, new if hasattr(dist, new) else old)
    return function


_all_gather = _either("all_gather_single", "all_gather_into_tensor")
_reduce_scatter = _either("reduce_scatter_single", "reduce_scatter_tensor")


class Dispatcher:
    """One rank's end. Made on all ranks of `group` (all ranks of the job, if left out) together.

    `sheet` names the machine; `table` replaces the table shipped with it. Kernels are built into
    `cache` at their first use. ValueError if the ranks' tables differ.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        sheet: str = "h200x4",
        *,
        table: Table | None = None,
        cache: Path | None = None,
    ) -> None:
        members = group if group is not None else dist.group.WORLD
        if members is None:
            raise RuntimeError("there is no process group: call init_process_group first")
        self.group, self.sheet = members, sheet
        self.world_size = dist.get_world_size(members)
        self.table = table if table is not None else load_dispatch(sheet)
        self._measured_with = load_sheet(sheet).world_size
        self._cache = cache or Path.home() / ".cache" / "pkforge" / "build"
        self._kernels: dict[tuple[str, str, tuple[tuple[str, int], ...]], GroupKernel] = {}
        # Why a kernel of the table did not take a shape, by kernel and sizes.
        self.refused: dict[tuple[str, tuple[int, ...]], str] = {}
        mine = hashlib.sha256(repr((sheet, self.table)).encode()).hexdigest()
        theirs: list[Any] = [None] * self.world_size
        dist.all_gather_object(theirs, mine, group=members)
        if set(theirs) != {mine}:
            raise ValueError("the ranks' dispatch tables differ: use the same version everywhere")

    # --- what to use

    def choose(self, operation: str, nbytes: int) -> Row:
        """The row of the table for a size, NCCL where the table does not hold for this group."""
        row = self.table.row(operation, nbytes)
        return row if self.world_size == self._measured_with else Row()

    def explain(self, operation: str, nbytes: int) -> str:
        """What is used for bf16 tensors of this size, and why, in one sentence."""
        row = self.choose(operation, nbytes)
        what = f"{operation} of {nbytes} bytes:"
        basis = f"{self.sheet}.dispatch.toml, {self.table.measured}"
        if self.world_size != self._measured_with:
            why = f"the table is for {self._measured_with} ranks, and there are {self.world_size}"
        elif row.nccl and self.table.measured == NOT_MEASURED:
            why = f"no kernel was measured to be faster yet ({basis})"
        elif row.nccl:
            why = f"it was the fastest ({basis})"
        else:
            knobs = ", ".join(f"{name}={value}" for name, value in sorted(row.knobs.items()))
            return f"{what} kernel {row.kernel} ({knobs or 'default knobs'}), the fastest ({basis})"
        return f"{what} torch.distributed (NCCL): {why}"

    # --- collectives

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of `x` over all ranks, added in fp32 in rank order where a kernel does it."""
        width = _width(x.numel())
        y = self._kernel("all_reduce", x, (-1, width)) if width else None
        if y is None:
            y = x.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(y, group=self.group)
        return y.view(x.shape)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """[W, *x.shape]: the x of every rank, in rank order."""
        width = _width(x.numel())
        y = self._kernel("all_gather", x, (-1, width)) if width else None
        if y is None:
            y = x.new_empty(self.world_size * x.numel())
            _all_gather(y, x.reshape(-1), group=self.group)
        return y.view(self.world_size, *x.shape)

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        """Part `rank` of the sum of `x` over all ranks; x's first dimension is cut in W parts."""
        self._require_parts("reduce_scatter", x)
        width = _width(x.numel() // self.world_size)
        y = self._kernel("reduce_scatter", x, (-1, width)) if width else None
        if y is None:
            y = x.new_empty(x.numel() // self.world_size)
            _reduce_scatter(y, x.reshape(-1), group=self.group)
        return y.view(x.shape[0] // self.world_size, *x.shape[1:])

    def all_to_all(self, x: torch.Tensor) -> torch.Tensor:
        """Part s of the result is part `rank` of rank s's x; parts along the first dimension."""
        self._require_parts("all_to_all", x)
        width = _width(x.numel() // self.world_size)
        y = self._kernel("all_to_all", x, (self.world_size, -1, width)) if width else None
        if y is None:
            y = torch.empty_like(x, memory_format=torch.contiguous_format)
            dist.all_to_all_single(y, x.contiguous(), group=self.group)
        return y.view(x.shape)

    # --- fused operators

    def gemm_reduce_scatter(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """This rank's rows of the sum of a @ b over all ranks; a [M, K/W], b [K/W, N]."""
        nbytes = a.shape[0] * b.shape[1] * a.itemsize
        c = self._run("gemm_reduce_scatter", nbytes, {"a": a, "b": b})
        return self.reduce_scatter(torch.matmul(a, b)) if c is None else c

    def gemm_all_reduce(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The sum of a @ b over all ranks; a [M, K/W], b [K/W, N]."""
        nbytes = a.shape[0] * b.shape[1] * a.itemsize
        c = self._run("gemm_all_reduce", nbytes, {"a": a, "b": b})
        return self.all_reduce(torch.matmul(a, b)) if c is None else c

    def all_gather_gemm(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """(The rows of a from all ranks) @ b; a [M/W, K], b [K, N/W]."""
        c = self._run("all_gather_gemm", a.nbytes, {"a": a, "b": b})
        return torch.matmul(self.all_gather(a).flatten(0, 1), b) if c is None else c

    # --- kernels

    def _require_parts(self, operation: str, x: torch.Tensor) -> None:
        if not x.dim() or x.shape[0] % self.world_size:
            raise ValueError(
                f"{operation}: the first dimension of {list(x.shape)} is not a multiple of "
                f"{self.world_size} ranks"
            )

    def _kernel(
        self, operation: str, x: torch.Tensor, shape: tuple[int, ...]
    ) -> torch.Tensor | None:
        return self._run(operation, x.nbytes, {"x": x.reshape(shape)})

    def _run(self, operation: str, nbytes: int, inputs: Tensors) -> torch.Tensor | None:
        """The kernel's result, or None where torch.distributed is to be called."""
        row = self.choose(operation, nbytes)
        if row.kernel is None or any(
            not t.is_cuda or t.dtype != torch.bfloat16 for t in inputs.values()
        ):
            return None
        known = (row.kernel, tuple(size for t in inputs.values() for size in t.shape))
        if known in self.refused:
            return None
        try:
            made = self._made(operation, row)(**inputs)
        except RefusedError as error:  # by the shapes alone, so on every rank
            self.refused[known] = str(error)
            return None
        return next(iter(made.values()))

    def _made(self, operation: str, row: Row) -> GroupKernel:
        name = str(row.kernel)
        key = (operation, name, tuple(sorted(row.knobs.items())))
        if key not in self._kernels:
            candidate = Candidate("pk", shipped_kernel(name).files, dict(row.knobs))
            self._kernels[key] = GroupKernel(
                *(Compiler(self._cache).library(candidate), heap_of(self.group)),
                INTERFACES[operation],
                name=name,
                identity=candidate.digest(),
            )
        return self._kernels[key]


def _width(elements: int) -> int:
    """How wide the rows of a flat tensor are made; 0 if no kernel takes so many elements."""
    return next((w for w in _WIDTHS if elements and elements % w == 0), 0)


assert set(INTERFACES) == set(OPERATIONS)
