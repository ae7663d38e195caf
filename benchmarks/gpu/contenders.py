"""What competes in a row: each contender prepares one call per input set, on every rank."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.case import Case, Tensors
from pk_runtime.gpu.rank_kernel import RankKernel
from pk_runtime.gpu.tensors import bytes_of, pitch_of

ALIGNMENT = 256

Call = Callable[[], Tensors]


@dataclass
class Prepared:
    """Calls by input set. Collective: every rank makes the same calls in the same order."""

    calls: list[Call]
    sms: int | None = None
    note: str = ""
    checked: bool = True  # whether the calls return the problem's outputs
    repeatable: bool = True  # whether they do so again and again
    failures: Callable[[], list[str]] = list  # what a kernel of ours says when it gave up
    close: Callable[[], None] = field(default=lambda: None)


class NotApplicable(Exception):  # noqa: N818  not an error: recorded as a note
    """This contender does not do this operator, or does not exist here."""


@dataclass(frozen=True)
class Built:
    """One of our kernels, built for one setting of its knobs; or why it is not there."""

    kernel: str
    knobs: dict[str, int]
    digest: str = ""
    library: str = ""
    problem: str = ""

    @property
    def name(self) -> str:
        """`gemm_reducescatter stages=3`."""
        return " ".join([self.kernel, *(f"{k}={v}" for k, v in self.knobs.items())])


def reference(case: Case) -> Prepared:
    """The problem's PyTorch + NCCL reference."""
    return Prepared([_referring(case, inputs) for inputs in case.sets])


def _referring(case: Case, inputs: Mapping[str, Tensor]) -> Call:
    return lambda: case.problem.reference(case.ranks.group, **inputs)


def gemm_alone(case: Case) -> Prepared:
    """cuBLAS on one rank's GEMM, no communication: the ceiling of a fused operator."""
    shape = case.gemm()
    if shape is None:
        raise NotApplicable("the operator has no GEMM")
    m, n, k = shape
    calls: list[Call] = []
    for _ in case.sets:
        a = torch.randn(m, k, device="cuda").to(case.problem.dtype)
        b = torch.randn(k, n, device="cuda").mul_(k**-0.5).to(case.problem.dtype)
        calls.append(_multiplying(a, b, torch.empty(m, n, dtype=a.dtype, device="cuda")))
    return Prepared(calls, checked=False)


def _multiplying(a: Tensor, b: Tensor, c: Tensor) -> Call:
    def call() -> Tensors:
        torch.matmul(a, b, out=c)
        return {"c": c}

    return call


def ours(case: Case, built: Built, *, staged: bool = False) -> Prepared:
    """One of our kernels. Tensors that peers touch lie in symmetric memory; if `staged`, none do,
    so that they are copied there and back."""
    if built.problem:
        raise NotApplicable(built.problem)
    inputs = {name: (spec.shape, spec.dtype) for name, spec in case.inputs.items()}
    outputs = {name: (spec.shape, spec.dtype) for name, spec in case.outputs.items()}
    kernel = RankKernel(
        *(Path(built.library), case.ranks.heap, inputs, outputs),
        identity=built.digest,
        timeout_s=3.0,
    )
    memory = _SharedSets(case, kernel, 0 if staged else len(case.sets))
    calls: list[Call] = []
    for number, given in enumerate(case.sets):
        bound_in = {name: memory.input(name, number, value) for name, value in given.items()}
        bound_out = {name: memory.output(name, number) for name in case.outputs}
        calls.append(kernel.bind(bound_in, bound_out))

    def close() -> None:
        kernel.close()
        memory.close()

    return Prepared(calls, sms=kernel.blocks, failures=kernel.failures, close=close)


class _SharedSets:
    """`sets` copies of each tensor that peers touch, in one symmetric buffer."""

    def __init__(self, case: Case, kernel: RankKernel, sets: int) -> None:
        self._case, self._heap = case, case.ranks.heap
        specs = {**case.inputs, **case.outputs}
        self._sizes = {
            name: -(-bytes_of(specs[name].shape, specs[name].dtype) // ALIGNMENT) * ALIGNMENT
            for name in (kernel.tensors if sets else ())
        }
        self._specs = specs
        self._name = self._heap.fresh_name("benchmark")
        size = sets * sum(self._sizes.values())
        self._buffer = self._heap.allocate(self._name, size) if size else None

    def input(self, name: str, number: int, value: Tensor) -> Tensor:
        """A set's input where the kernel wants it."""
        place = self._shared(name, number)
        return value if place is None else place.copy_(value)

    def output(self, name: str, number: int) -> Tensor:
        """Memory for a set's output."""
        spec = self._specs[name]
        place = self._shared(name, number)
        return torch.empty(spec.shape, dtype=spec.dtype, device="cuda") if place is None else place

    def close(self) -> None:
        """Gives the memory back."""
        if self._buffer is not None:
            self._heap.free(self._name)

    def _shared(self, name: str, number: int) -> Tensor | None:
        if self._buffer is None or name not in self._sizes:
            return None
        before = list(self._sizes).index(name)
        start = number * sum(self._sizes.values()) + sum(list(self._sizes.values())[:before])
        shape, dtype = self._specs[name].shape, self._specs[name].dtype
        return self._buffer.tensor(shape, dtype, offset=start, pitch=pitch_of(shape, dtype))


def contender_of(name: str) -> Callable[[Case], Prepared]:
    """A contender that is not ours, by its name."""
    from benchmarks.gpu import peers

    known: dict[str, Any] = {"nccl": reference, "cublas": gemm_alone, **peers.PEERS}
    return known[name]  # type: ignore[no-any-return]
