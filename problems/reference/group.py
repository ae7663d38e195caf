"""A `torch.distributed.ProcessGroup` whose ranks are threads of one process.

The reference of a problem runs on it unchanged and without starting a process. Nothing is
registered with `torch.distributed`, so nothing stays behind. A collective is complete when its
call returns, also with `async_op=True`.

Arithmetic: reductions round to the tensor's dtype at each hop, in the order of NCCL's ring. A
tensor is cut into W chunks; chunk c starts at rank c+1 and ends at rank c, so it is rounded W-1
times: `((x[c+1] + x[c+2]) + ...) + x[c]`. NCCL cuts large tensors more finely (per channel), which
changes the order of an element but not the number of roundings. `ReduceOp.AVG` multiplies by 1/W
before it sums, as NCCL does. A `Variant` has another order or precision.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from problems.reference.defects import Defect, sentinel
from problems.reference.meeting import Meeting
from problems.reference.variants import RING, Variant

_COMBINE: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.AVG: torch.add,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
}


class _Done(dist.Work):
    """The handle of work that is already complete."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class _Receive(dist.Work):
    """A pending receive: `wait` fills the tensor."""

    def __init__(self, take: Callable[[], None]) -> None:
        super().__init__()
        self._take: Callable[[], None] | None = take

    def wait(self, timeout: Any = None) -> bool:
        take, self._take = self._take, None
        if take is not None:
            take()
        return True


# The stubs give every method the overloads of its C++ binding, which no Python override can have.
_ProcessGroup: Any = dist.ProcessGroup


class ThreadGroup(_ProcessGroup):  # type: ignore[misc]
    """The group object of one rank; all ranks of a group share one `Meeting`."""

    def __init__(
        self, rank: int, meeting: Meeting, defect: Defect | None = None, variant: Variant = RING
    ) -> None:
        super().__init__(rank, meeting.world_size)
        self._me = rank
        self._meeting = meeting
        self._world = meeting.world_size
        self._defect = defect
        self._variant = variant
        self._number = 0

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        """All-reduce in place."""
        (tensor,) = tensors
        call = f"all_reduce {_described(tensor)} {_operation_name(opts)}"
        tensor.copy_(self._reduce(call, tensor, opts, chunked=True))
        return _Done()

    def reduce(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        """Reduce to the root; the tensors of other ranks stay as they are."""
        (tensor,) = tensors
        call = f"reduce {_described(tensor)} {_operation_name(opts)} root {opts.rootRank}"
        result = self._reduce(call, tensor, opts, last=opts.rootRank)
        if self._me == opts.rootRank:
            tensor.copy_(result)
        return _Done()

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        """Reduce-scatter along dimension 0."""
        call = f"reduce_scatter {_described(input)} {_operation_name(opts)}"
        result = self._reduce(call, input, opts, chunked=True)
        _land(output, result.reshape(self._world, -1)[self._me], call)
        return _Done()

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> dist.Work:
        """Reduce-scatter of a list with one tensor per rank."""
        return self.reduce_scatter_single(outputs[0], torch.stack(inputs[0]), opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        """All-gather along dimension 0."""
        call = f"all_gather {_described(input)}"
        _land(output, torch.stack(self._move(call, [input] * self._world)), call)
        return _Done()

    _allgather_base = all_gather_single

    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> dist.Work:
        """All-gather into a list with one tensor per rank."""
        call = f"all_gather list {_described(inputs[0])}"
        _fill(outputs[0], self._move(call, [inputs[0]] * self._world), call)
        return _Done()

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> dist.Work:
        """All-to-all along dimension 0, in equal parts unless splits are given."""
        call = f"all_to_all {_dtype(input)}"
        pieces = self._move(call, _split(input, input_splits, self._world))
        _fill(_split(output, output_splits, self._world), pieces, call)
        return _Done()

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        """All-to-all of lists with one tensor per rank."""
        call = f"all_to_all list {_dtype(inputs[0])}"
        _fill(outputs, self._move(call, inputs), call)
        return _Done()

    def broadcast(self, tensors: list[Tensor], opts: Any) -> dist.Work:
        """Broadcast from the root, in place."""
        (tensor,) = tensors
        call = f"broadcast {_described(tensor)} root {opts.rootRank}"
        tensor.copy_(self._move(call, [tensor] * self._world)[opts.rootRank])
        return _Done()

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> dist.Work:
        """Scatter the root's list, one tensor to each rank."""
        # What another rank than the root brings is never used, unless there is a defect.
        sent = inputs[0] if inputs else [sentinel(outputs[0])] * self._world
        call = f"scatter {_described(outputs[0])} root {opts.rootRank}"
        _land(outputs[0], self._move(call, sent)[opts.rootRank], call)
        return _Done()

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> dist.Work:
        """Gather one tensor of each rank into the root's list."""
        call = f"gather {_described(inputs[0])} root {opts.rootRank}"
        pieces = self._move(call, [inputs[0]] * self._world)
        if self._me == opts.rootRank:
            _fill(outputs[0], pieces, call)
        return _Done()

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait for all ranks."""
        self._meeting.collective(self._me, "barrier", None, lambda brought: brought)
        return _Done()

    def send(self, tensors: list[Tensor], to: int, tag: int) -> dist.Work:
        """Send a tensor to a rank; complete at once."""
        (tensor,) = tensors
        defect = self._defect
        lost = defect is not None and (
            defect.kind == "local" or (defect.kind == "without" and defect.rank == self._me)
        )
        self._meeting.send(self._me, to, tag, sentinel(tensor) if lost else tensor)
        return _Done()

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> dist.Work:
        """Receive a tensor from a rank; `wait` on the handle blocks until it has come."""
        (tensor,) = tensors

        def take() -> None:
            _land(tensor, self._meeting.receive(self._me, source, tag), f"recv from {source}")

        return _Receive(take)

    def _active(self) -> Defect | None:
        """The defect if it is in this collective."""
        number = self._number
        self._number += 1
        defect = self._defect
        return defect if defect is not None and defect.only in (None, number) else None

    def _reduce(
        self, call: str, tensor: Tensor, opts: Any, *, chunked: bool = False, last: int = 0
    ) -> Tensor:
        """The reduced tensor of this rank, shaped like `tensor`."""
        operation = opts.reduceOp.op if opts is not None else dist.ReduceOp.SUM
        defect = self._active()
        _dense(tensor, call)
        if operation not in _COMBINE:
            raise NotImplementedError(f"{call}: the in-process group has no {operation}.")

        def combine(brought: list[Tensor]) -> list[Tensor]:
            parts = [self._variant.widened(part) for part in brought]
            if operation == dist.ReduceOp.AVG:
                parts = [part / self._world for part in parts]
            ring = functools.partial(
                _ring, operation=operation, chunked=chunked, last=last, world_size=self._world,
                variant=self._variant,
            )  # fmt: skip
            if defect is None:
                return [ring(list(enumerate(parts))).to(tensor.dtype)] * self._world
            return [ring(defect.contributions(parts, me)) for me in range(self._world)]

        reduced: Tensor = self._meeting.collective(self._me, call, tensor, combine)
        return reduced

    def _move(self, call: str, sent: Sequence[Tensor]) -> list[Tensor]:
        """Copies of what every rank sent to this one; `sent` has one tensor per receiver."""
        defect = self._active()
        if len(sent) != self._world:
            raise ValueError(f"{call}: {len(sent)} parts for {self._world} ranks.")
        for part in sent:
            _dense(part, call)

        def combine(brought: list[Sequence[Tensor]]) -> list[list[Tensor]]:
            results = []
            for me in range(self._world):
                pieces = [parts[me] for parts in brought]
                if defect is not None:
                    pieces = defect.pieces(pieces, me, brought[me])
                results.append([piece.clone() for piece in pieces])
            return results

        received: list[Tensor] = self._meeting.collective(self._me, call, sent, combine)
        return received


def _ring(
    parts: Sequence[tuple[int, Tensor]],
    *,
    operation: Any,
    chunked: bool,
    last: int,
    world_size: int,
    variant: Variant,
) -> Tensor:
    """Reduce (rank, tensor) pairs hop by hop, each hop rounded to their dtype."""
    first = parts[0][1]
    count = world_size if chunked else 1
    columns = [(rank, part.reshape(-1).tensor_split(count)) for rank, part in parts]
    chunks = []
    for chunk in range(count):
        end = chunk if chunked else last
        order = sorted(columns, key=lambda column: variant.position(column[0], end, world_size))
        pieces = [column[1][chunk] for column in order]
        chunks.append(functools.reduce(_COMBINE[operation], pieces))
    return torch.cat(chunks).reshape(first.shape)


def _split(tensor: Tensor, splits: Sequence[int], world_size: int) -> list[Tensor]:
    if splits:
        return list(torch.split(tensor, list(splits)))
    if tensor.shape[0] % world_size:
        raise ValueError(f"{tensor.shape[0]} rows do not divide into {world_size} equal parts")
    return list(tensor.chunk(world_size))


def _fill(outputs: Sequence[Tensor], pieces: Sequence[Tensor], call: str) -> None:
    if len(outputs) != len(pieces):
        raise ValueError(f"{call}: {len(outputs)} output tensors for {len(pieces)} ranks")
    for output, piece in zip(outputs, pieces, strict=True):
        _land(output, piece, call)


def _land(output: Tensor, value: Tensor, call: str) -> None:
    """Write a result; like NCCL, never cast, and accept only tensors without gaps."""
    _dense(output, call)
    if output.dtype != value.dtype or output.numel() != value.numel():
        raise ValueError(
            f"{call}: the output tensor is {_described(output)}, the result is {_described(value)}"
        )
    output.copy_(value.view_as(output))


def _dense(tensor: Tensor, call: str) -> None:
    if not tensor.is_contiguous():
        raise ValueError(f"{call}: tensors must be contiguous; add .contiguous()")


def _described(tensor: Tensor) -> str:
    return f"{_dtype(tensor)}{list(tensor.shape)}"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _operation_name(opts: Any) -> str:
    return str(opts.reduceOp.op).removeprefix("RedOpType.").lower() if opts is not None else "sum"
