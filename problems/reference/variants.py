"""How honest implementations reduce: other orders and roundings than NCCL's ring.

Put into the in-process group as a `Defect` is, but what comes out is right: a fused kernel sums in
fp32 and rounds once, another algorithm goes round the ring the other way. How far these are from
the golden is the noise that a tolerance has to bear; see `problems.lint.noise`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Variant:
    """The order and the precision of a sum over ranks.

    The parts of ranks are added one after the other, round the ring in the direction of `turn` (1
    or -1), beginning `start` ranks after the one that NCCL begins with. `wide`: low-precision
    numbers are added in fp32 and rounded once.
    """

    turn: int = 1
    start: int = 0
    wide: bool = False

    def position(self, rank: int, end: int, world_size: int) -> int:
        """When the part of `rank` is added in the sum that NCCL ends at rank `end`."""
        return (self.turn * (rank - end) - 1 - self.start) % world_size

    def widened(self, tensor: Tensor) -> Tensor:
        """The tensor as it is added."""
        low = tensor.is_floating_point() and tensor.element_size() < 4
        return tensor.to(torch.float32) if self.wide and low else tensor


RING = Variant()
VARIANTS = {
    "ring": RING,
    "reversed": Variant(turn=-1),
    "rotated": Variant(start=1),
    "fp32": Variant(wide=True),
}
