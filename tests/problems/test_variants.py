"""Sums of the in-process group in other orders and precisions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from problems.reference.ranks import run
from problems.reference.variants import RING, VARIANTS, Variant
from tests.problems.samples import Sample

WORLD = 4


def summed(variant: Variant, *, op: Any = dist.ReduceOp.SUM, dtype: Any = torch.bfloat16) -> Tensor:
    """An all-reduce over four ranks of powers that make every order visible."""

    def reduce(group: Any, x: Tensor) -> Tensor:
        y = x.clone()
        dist.all_reduce(y, op=op, group=group)
        return y

    values = torch.tensor([1.0, 2.0**-8, 2.0**-8, -1.0]).to(dtype)
    inputs = [{"x": values[rank].expand(WORLD).contiguous()} for rank in range(WORLD)]
    outputs = run(Sample(reduce), inputs, variant=variant).outputs
    assert all(torch.equal(rank["y"], outputs[0]["y"]) for rank in outputs)
    return outputs[0]["y"]


def by_hand(order: Callable[[int], list[int]]) -> Tensor:
    """Chunk by chunk, every hop rounded."""
    values = torch.tensor([1.0, 2.0**-8, 2.0**-8, -1.0]).bfloat16()
    chunks = []
    for chunk in range(WORLD):
        total = None
        for rank in order(chunk):
            total = values[rank] if total is None else total + values[rank]
        chunks.append(total)
    return torch.stack(chunks)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("ring", lambda chunk: [(chunk + 1 + hop) % WORLD for hop in range(WORLD)]),
        ("reversed", lambda chunk: [(chunk - 1 - hop) % WORLD for hop in range(WORLD)]),
        ("rotated", lambda chunk: [(chunk + 2 + hop) % WORLD for hop in range(WORLD)]),
    ],
)
def test_the_order_of_a_sum(name: str, order: Callable[[int], list[int]]) -> None:
    assert torch.equal(summed(VARIANTS[name]), by_hand(order))


def test_orders_differ_and_a_wide_sum_rounds_once() -> None:
    results = {name: tuple(summed(variant).tolist()) for name, variant in VARIANTS.items()}
    assert len(set(results.values())) == len(results)
    exact = float(torch.tensor(2.0**-7).bfloat16())
    assert results["fp32"] == (exact,) * WORLD
    mean = summed(VARIANTS["fp32"], op=dist.ReduceOp.AVG)
    assert mean.tolist() == [exact / WORLD] * WORLD


@pytest.mark.parametrize("dtype", [torch.int32, torch.float64])
def test_what_is_wide_already_keeps_its_type(dtype: torch.dtype) -> None:
    assert summed(VARIANTS["fp32"], dtype=dtype).dtype == dtype


def test_only_low_precision_is_widened() -> None:
    wide = VARIANTS["fp32"]
    assert wide.widened(torch.ones(1).half()).dtype == torch.float32
    assert wide.widened(torch.ones(1).int()).dtype == torch.int32
    assert RING.widened(torch.ones(1).half()).dtype == torch.float16
