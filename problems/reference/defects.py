"""Communication defects that can be put into the in-process group.

They turn the reference itself into a wrong program: one without communication, without one rank's
contribution, or with a contribution counted twice. The wrong-answer bank and the task lint are
made of these, so that a problem's author writes no mutant by hand.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Defect:
    """What goes wrong in a collective.

    `local`: every rank gets a copy of its own part, times `scale`; `without`: nothing arrives from
    `rank`; `twice`: the contribution of `rank` is reduced twice. `only` limits it to the
    collective of that number (0 is the first); by default every collective has it.
    """

    kind: Literal["local", "without", "twice"]
    rank: int = 0
    scale: float = 1.0
    only: int | None = None

    def contributions(self, parts: Sequence[Tensor], receiver: int) -> list[tuple[int, Tensor]]:
        """The (rank, tensor) pairs that are reduced at `receiver` instead of all of them."""
        pairs = list(enumerate(parts))
        if self.kind == "local":
            return [(receiver, self._scaled(parts[receiver]))]
        if self.kind == "without":
            return [pair for pair in pairs if pair[0] != self.rank]
        return [*pairs, (self.rank, parts[self.rank])]

    def pieces(
        self, pieces: Sequence[Tensor], receiver: int, own: Sequence[Tensor]
    ) -> list[Tensor]:
        """What lands at `receiver` instead of `pieces`, one per sender; `own` is what it sent."""
        if self.kind == "local":
            return [fit(self._scaled(piece), like) for piece, like in zip(own, pieces, strict=True)]
        if self.kind == "without" and receiver != self.rank:
            return [
                sentinel(piece) if sender == self.rank else piece
                for sender, piece in enumerate(pieces)
            ]
        return list(pieces)

    def _scaled(self, tensor: Tensor) -> Tensor:
        return tensor if self.scale == 1.0 else (tensor * self.scale).to(tensor.dtype)


def sentinel(like: Tensor) -> Tensor:
    """A tensor that was never written: NaN, or the lowest value where the dtype has no NaN."""
    if like.dtype.is_floating_point or like.dtype.is_complex:
        return torch.full_like(like, math.nan)
    return torch.full_like(like, 0 if like.dtype == torch.bool else torch.iinfo(like.dtype).min)


def fit(source: Tensor, like: Tensor) -> Tensor:
    """`source` cut or repeated, in element order, to the shape and dtype of `like`."""
    if source.shape == like.shape:
        return source.to(like.dtype)
    flat = source.reshape(-1)
    if flat.numel() == 0:
        return torch.zeros_like(like)
    repeats = -(-like.numel() // flat.numel())
    return flat.repeat(repeats)[: like.numel()].reshape(like.shape).to(like.dtype)
