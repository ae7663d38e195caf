"""The in-process group: what collectives give, how they round, and what happens to misuse."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from problems.contract import Tensors
from problems.errors import ProblemError
from problems.reference.defects import Defect
from problems.reference.meeting import RendezvousError
from problems.reference.ranks import ReferenceFailed, run, run_ranks
from tests.problems.samples import Sample, all_reduced

WORLD = 4
Function = Callable[[Any, Tensor], Tensor]


def outputs(function: Function, inputs: list[Tensor], **options: Any) -> list[Tensor]:
    """What `function(group, x)` returns on every rank."""
    ranks: list[Tensors] = [{"x": x} for x in inputs]
    return [out["y"] for out in run(Sample(function), ranks, **options).outputs]


def numbered(*shape: int, world: int = WORLD, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """A different tensor for every rank."""
    size = int(torch.tensor(shape).prod())
    return [
        (torch.arange(size, dtype=torch.float64).reshape(shape) + 100 * rank).to(dtype)
        for rank in range(world)
    ]


def test_all_reduce_sums_on_every_rank() -> None:
    inputs = numbered(3, 5)
    for result in outputs(all_reduced, inputs):
        assert torch.equal(result, torch.stack(inputs).sum(0))


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (dist.ReduceOp.MAX, lambda x: x.amax(0)),
        (dist.ReduceOp.MIN, lambda x: x.amin(0)),
        (dist.ReduceOp.PRODUCT, lambda x: x.prod(0)),
        (dist.ReduceOp.AVG, lambda x: x.mean(0)),
    ],
)
def test_reduce_operations(operation: Any, expected: Callable[[Tensor], Tensor]) -> None:
    def reduced(group: Any, x: Tensor) -> Tensor:
        y = x.clone()
        dist.all_reduce(y, op=operation, group=group)
        return y

    inputs = numbered(2, 3)
    for result in outputs(reduced, inputs):
        assert torch.allclose(result, expected(torch.stack(inputs)))


def test_bf16_is_rounded_at_each_hop_in_ring_order() -> None:
    generator = torch.Generator().manual_seed(3)
    x = [torch.randn(WORLD, 8, generator=generator).bfloat16() for _ in range(WORLD)]
    (result, *others) = outputs(all_reduced, x)
    for chunk in range(WORLD):
        order = [(chunk + 1 + hop) % WORLD for hop in range(WORLD)]
        total = x[order[0]][chunk]
        for rank in order[1:]:
            total = (total.float() + x[rank][chunk].float()).bfloat16()
        assert torch.equal(result[chunk], total)
    assert all(torch.equal(result, other) for other in others)
    assert not torch.equal(result, torch.stack(x).float().sum(0).bfloat16())


def _reduce_scatter(group: Any, x: Tensor) -> Tensor:
    y = x.new_empty(x.shape[0] // group.size(), x.shape[1])
    dist.reduce_scatter(y, list(x.chunk(group.size())), group=group)
    return y


def _all_gather_list(group: Any, x: Tensor) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(group.size())]
    dist.all_gather(parts, x, group=group)
    return torch.stack(parts)


def _uneven_all_to_all(group: Any, x: Tensor) -> Tensor:
    """Rank r sends r+1 rows to each rank."""
    rows = group.rank() + 1
    sizes = [rank + 1 for rank in range(group.size())]
    y = x.new_empty(sum(sizes), x.shape[1])
    mine = x[: rows * group.size()].contiguous()
    dist.all_to_all_single(y, mine, sizes, [rows] * group.size(), group=group)
    return y


def _all_to_all_list(group: Any, x: Tensor) -> Tensor:
    parts = [torch.empty_like(part) for part in x.chunk(group.size())]
    dist.all_to_all(parts, list(x.chunk(group.size())), group=group)
    return torch.cat(parts)


def _broadcast(group: Any, x: Tensor) -> Tensor:
    y = x.clone()
    dist.broadcast(y, group_src=2, group=group)
    return y


def _reduce(group: Any, x: Tensor) -> Tensor:
    y = x.clone()
    dist.reduce(y, group_dst=1, group=group)
    return y


def _scatter(group: Any, x: Tensor) -> Tensor:
    y = x.new_empty(x.shape[0] // group.size(), x.shape[1])
    parts = list(x.chunk(group.size())) if group.rank() == 3 else None
    dist.scatter(y, parts, group_src=3, group=group)
    return y


def _gather(group: Any, x: Tensor) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(group.size())] if group.rank() == 0 else None
    dist.gather(x, parts, group_dst=0, group=group)
    return torch.stack(parts) if parts else x


def _ring_shift(group: Any, x: Tensor) -> Tensor:
    """Receive first, then send: must not block."""
    y = torch.empty_like(x)
    rank, size = group.rank(), group.size()
    came = dist.irecv(y, group_src=(rank - 1) % size, group=group)
    sent = dist.isend(x, group_dst=(rank + 1) % size, group=group)
    assert came is not None
    assert sent is not None
    came.wait()
    sent.wait()
    dist.barrier(group=group)
    return y


def test_other_collectives() -> None:
    x = numbered(16, 3)
    total = torch.stack(x).sum(0)
    for rank in range(WORLD):
        assert torch.equal(outputs(_reduce_scatter, x)[rank], total.chunk(WORLD)[rank])
        assert torch.equal(outputs(_all_gather_list, x)[rank], torch.stack(x))
        exchanged = torch.cat([sender.chunk(WORLD)[rank] for sender in x])
        assert torch.equal(outputs(_all_to_all_list, x)[rank], exchanged)
        uneven = [x[s][rank * (s + 1) : (rank + 1) * (s + 1)] for s in range(WORLD)]
        assert torch.equal(outputs(_uneven_all_to_all, x)[rank], torch.cat(uneven))
        assert torch.equal(outputs(_broadcast, x)[rank], x[2])
        assert torch.equal(outputs(_reduce, x)[rank], total if rank == 1 else x[rank])
        assert torch.equal(outputs(_scatter, x)[rank], x[3].chunk(WORLD)[rank])
        assert torch.equal(outputs(_gather, x)[rank], torch.stack(x) if rank == 0 else x[rank])
        assert torch.equal(outputs(_ring_shift, x)[rank], x[(rank - 1) % WORLD])


def test_integers_and_async_work() -> None:
    def reduced(group: Any, x: Tensor) -> Tensor:
        y = x.clone()
        work = dist.all_reduce(y, group=group, async_op=True)
        assert work is not None
        work.wait()
        assert work.is_completed()
        return y

    inputs = numbered(5, dtype=torch.int64)
    assert torch.equal(outputs(reduced, inputs)[0], torch.stack(inputs).sum(0))


def test_nothing_stays_behind() -> None:
    before = threading.active_count()
    outputs(all_reduced, numbered(4))
    assert threading.active_count() == before
    assert not dist.is_initialized()
    assert torch.is_grad_enabled()


def test_different_collectives_are_an_error_on_all_ranks() -> None:
    def mismatched(group: Any, x: Tensor) -> Tensor:
        return _broadcast(group, x) if group.rank() == 2 else all_reduced(group, x)

    message = r"disagree in collective 0: .*(all_reduce|broadcast) float32\[4\]"
    with pytest.raises(RendezvousError, match=message):
        outputs(mismatched, numbered(4))


def test_different_shapes_are_an_error() -> None:
    inputs = [*numbered(4, world=3), torch.ones(5)]
    with pytest.raises(RendezvousError, match=r"float32\[4\].*float32\[5\]|float32\[5\]"):
        outputs(all_reduced, inputs)


def test_a_rank_that_leaves_early_is_named() -> None:
    def early(group: Any, x: Tensor) -> Tensor:
        return x if group.rank() == 1 else all_reduced(group, x)

    with pytest.raises(
        RendezvousError, match=r"Rank 1 has returned .* without coming to collective 0"
    ):
        outputs(early, numbered(4))


def test_a_rank_that_hangs_is_named_at_the_deadline() -> None:
    release = threading.Event()

    def hung(group: Any, x: Tensor) -> Tensor:
        if group.rank() == 3:
            release.wait(30)
        return all_reduced(group, x)

    try:
        with pytest.raises(RendezvousError, match=r"Rank 3 did not come.*within 0\.2 s"):
            outputs(hung, numbered(4), rendezvous_s=0.2, run_s=1.0)
    finally:
        release.set()


def test_an_endless_reference_ends_at_the_deadline() -> None:
    release = threading.Event()

    def endless(group: Any, x: Tensor) -> Tensor:
        release.wait(30)
        return x

    try:
        with pytest.raises(RendezvousError, match=r"still running on rank 0, 1, 2, 3 after 0\.2 s"):
            outputs(endless, numbered(4), run_s=0.2)
    finally:
        release.set()


def test_an_awaited_message_that_never_comes_is_named() -> None:
    def awaits(group: Any, x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        if group.rank() == 0:
            dist.recv(y, group_src=1, group=group)
        return y

    with pytest.raises(RendezvousError, match="Rank 0 waits for a message of rank 1"):
        outputs(awaits, numbered(4, world=2))


def test_an_error_of_the_reference_has_rank_file_and_line() -> None:
    def broken(group: Any, x: Tensor) -> Tensor:
        if group.rank() == 2:
            raise KeyError("oops")
        return all_reduced(group, x)

    with pytest.raises(ReferenceFailed, match="failed on rank 2: KeyError: 'oops'") as caught:
        outputs(broken, numbered(4))
    assert caught.value.file == "samples.py"
    assert caught.value.line is not None


@pytest.mark.parametrize(
    "call",
    [
        lambda group: dist.get_rank(group),
        lambda group: dist.broadcast(torch.ones(1), src=0, group=group),
        lambda group: dist.all_reduce(torch.ones(1)),
    ],
)
def test_use_of_the_default_group_explains_what_to_write(call: Callable[[Any], Any]) -> None:
    def default(group: Any, x: Tensor) -> Tensor:
        call(group)
        return x

    with pytest.raises(ReferenceFailed, match=r"use group.rank\(\)"):
        outputs(default, numbered(4))


def test_like_nccl_the_group_neither_casts_nor_packs() -> None:
    def casting(group: Any, x: Tensor) -> Tensor:
        y = torch.empty(x.shape, dtype=torch.float64)
        dist.all_to_all([y] * 4, [x] * 4, group=group)
        return y

    def strided(group: Any, x: Tensor) -> Tensor:
        y = x.t()
        dist.all_reduce(y, group=group)
        return y

    with pytest.raises(ReferenceFailed):
        outputs(casting, numbered(4, 4))
    with pytest.raises(ReferenceFailed, match="must be contiguous"):
        outputs(strided, numbered(4, 3))


def test_a_reference_must_return_the_named_tensors() -> None:
    class Nothing(Sample):
        def reference(self, group: Any, x: Tensor) -> Any:
            return {"z": x}

    with pytest.raises(ReferenceFailed, match="tensors y; on rank 0 it returned z: Tensor"):
        run_ranks(Nothing(), [{"x": torch.ones(2)}, {"x": torch.ones(2)}])
    with pytest.raises(ProblemError, match="y: NoneType"):
        outputs(lambda group, x: None, numbered(2))  # type: ignore[arg-type, return-value]


def test_defects_of_a_reduction() -> None:
    x = numbered(8)
    total = torch.stack(x).sum(0)
    assert torch.equal(outputs(all_reduced, x, defect=Defect("local"))[1], x[1])
    scaled = outputs(all_reduced, x, defect=Defect("local", scale=4.0))
    assert torch.equal(scaled[1], 4 * x[1])
    assert torch.equal(outputs(all_reduced, x, defect=Defect("without", 2))[2], total - x[2])
    assert torch.equal(outputs(all_reduced, x, defect=Defect("twice", 2))[0], total + x[2])
    assert torch.equal(outputs(all_reduced, x, defect=Defect("local", only=1))[0], total)


def test_defects_of_a_gather() -> None:
    x = numbered(4, dtype=torch.int32)
    local = outputs(_all_gather_list, x, defect=Defect("local", scale=2.0))
    assert torch.equal(local[3], 2 * x[3].expand(4, 4))
    missing = outputs(_all_gather_list, [part.float() for part in x], defect=Defect("without", 1))
    assert missing[0][1].isnan().all()
    assert torch.equal(missing[0][2], x[2].float())
    assert torch.equal(missing[1][1], x[1].float())
    lowest = outputs(_all_gather_list, x, defect=Defect("without", 1))[0][1]
    assert (lowest == torch.iinfo(torch.int32).min).all()
