"""The scale of a launch's inputs: a power of two, drawn from the same seed as they are.

A kernel must be right whatever the size of its numbers. One that flushes small values, clamps large
ones or assumes an rms of 1 is right at one size only, so every launch that is compared has a size
of its own: all floating inputs of all ranks times 2^k. That changes nothing but exponents: inputs
keep the distribution and the rounding that the problem gives them. Integers are never scaled.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import TypeGuard

import torch

from problems.contract import Dims, OutputSpec, Problem, Tensors

Specs = Mapping[str, OutputSpec]

# The lowest and the highest k where a problem states none, by dtype. fp16 has five bits of
# exponent: sums of products of such inputs stay finite, and what they lose below is below u rms.
USUAL: Mapping[torch.dtype, tuple[int, int]] = {
    torch.bfloat16: (-10, 10),
    torch.float16: (-4, 4),
    torch.float32: (-10, 10),
    torch.float64: (-10, 10),
    torch.complex64: (-10, 10),
    torch.complex128: (-10, 10),
    torch.float8_e4m3fn: (0, 0),
    torch.float8_e5m2: (0, 0),
}
MOST = 20  # what a problem may state


def is_span(value: object) -> TypeGuard[tuple[int, int]]:
    """Whether this is a lowest and a highest k that a problem may state; scale 1 is in it."""
    if not isinstance(value, tuple) or len(value) != 2 or any(type(k) is not int for k in value):
        return False
    return bool(-MOST <= value[0] <= 0 <= value[1] <= MOST)


def span(stated: tuple[int, int] | None, inputs: Specs, outputs: Specs) -> tuple[int, int]:
    """The lowest and the highest k of a shape: what the problem states, or its narrowest dtype's.

    (0, 0) where no input is floating.
    """
    if not any(_floating(spec.dtype) for spec in inputs.values()):
        return (0, 0)
    if stated is not None:
        return stated
    usual = [USUAL[s.dtype] for s in (*inputs.values(), *outputs.values()) if _floating(s.dtype)]
    return max(low for low, _ in usual), min(high for _, high in usual)


def span_of(problem: Problem, dims: Dims, world_size: int) -> tuple[int, int]:
    """As `span`, of a problem whose code is at hand."""
    inputs = problem.input_specs(dims, world_size)
    return span(problem.scales, inputs, problem.output_specs(dims, world_size))


def exponent(within: tuple[int, int], seed: int) -> int:
    """The k of a seed: any from the lowest to the highest is as likely."""
    low, high = within
    drawn = int.from_bytes(hashlib.sha256(f"scale/{seed}".encode()).digest()[:8], "little")
    return low + drawn % (high - low + 1)


def scaled(tensors: Tensors, k: int) -> Tensors:
    """The tensors times 2^k, integers as they are."""
    if k == 0:
        return tensors
    return {
        name: _times(tensor, 2.0**k) if _floating(tensor.dtype) else tensor
        for name, tensor in tensors.items()
    }


def told(exponents: Iterable[int]) -> str:
    """Scales as reports tell them: "2^-3", or "2^-9 to 2^8" of several."""
    every = sorted(set(exponents))
    return f"2^{every[0]}" if len(every) == 1 else f"2^{every[0]} to 2^{every[-1]}"


def _floating(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _times(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    # PyTorch does not multiply in fp8.
    wide = tensor.float() if tensor.element_size() == 1 else tensor
    return (wide * factor).to(tensor.dtype)
