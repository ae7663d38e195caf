"""The collectives whose torch names change between versions, under one name each.

torch 2.13 renames `all_gather_into_tensor` and `reduce_scatter_tensor` to `all_gather_single` and
`reduce_scatter_single` and warns about the old names; torch 2.9 to 2.12 have only the old ones.
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor


def _either(new: str, old: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(dist, new if hasattr(dist, new) else old)
    return function


_all_gather = _either("all_gather_single", "all_gather_into_tensor")
_reduce_scatter = _either("reduce_scatter_single", "reduce_scatter_tensor")


def all_gather(output: Tensor, input: Tensor, group: dist.ProcessGroup) -> None:
    """Fill `output` with the `input` of every rank, in rank order along dimension 0.

    `output` has the shape of `input` with a new first dimension W, or with W times its rows.
    """
    # gloo wants the ranks' parts concatenated, not stacked in a dimension of their own.
    rows = output.view(group.size() * input.shape[0], *input.shape[1:])
    _all_gather(rows, input, group=group)


def reduce_scatter(output: Tensor, input: Tensor, group: dist.ProcessGroup) -> None:
    """Sum `input` over the ranks and keep this rank's part along dimension 0 in `output`."""
    _reduce_scatter(output, input, group=group)
