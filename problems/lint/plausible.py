"""Costs that a problem's own tensors contradict.

The roofline and the baseline decide what is physical and what is a win, and a problem's author
states them. They cannot be proved right, but the sizes of the tensors bound them on both sides: a
result must be written, and no operator moves its tensors more often than there are ranks.
"""

import math
from collections.abc import Iterator, Mapping

from problems.contract import Costs, OutputSpec

# Algorithms of several phases pass over their tensors more than once.
PASSES = 4
# Of elementwise work per element, where there is no GEMM: norms, activations, a few roundings.
OPERATIONS = 64

Specs = Mapping[str, OutputSpec]


def implausible(
    costs: Costs, inputs: Specs, outputs: Specs, world_size: int, where: str
) -> Iterator[str]:
    """What is wrong with the costs of one shape, as sentences; nothing if they can be true."""
    moved = _bytes(inputs) + _bytes(outputs)
    most = PASSES * world_size * moved
    if costs.hbm_bytes < _bytes(outputs):
        yield (
            f"`costs` {where}: {costs.hbm_bytes:g} hbm_bytes are fewer than its outputs have "
            f"({_bytes(outputs)}); count every input and output once."
        )
    for name, value in (("hbm_bytes", costs.hbm_bytes), ("nvlink_bytes", costs.nvlink_bytes)):
        if value > most:
            yield (
                f"`costs` {where}: {value:g} {name} are more than {PASSES} times what all ranks' "
                f"tensors have ({most}); no kernel needs as many."
            )
    work = costs.baseline
    elements = world_size * (_elements(inputs) + _elements(outputs))
    if work.gemm is not None:
        m, n, k = work.gemm
        operations = 2.0 * m * n * k * world_size
        if max(m * n, n * k, m * k) > elements:
            yield f"The baseline {where}: a GEMM of {m} x {n} x {k} is larger than the tensors."
    else:
        operations = float(OPERATIONS * elements)
    if costs.flops > operations:
        yield (
            f"`costs` {where}: {costs.flops:g} flops are more than the baseline's own work "
            f"({operations:g})."
        )
    for size in ((work.collective_bytes,) if work.collective else ()) + work.copies:
        if size > PASSES * world_size * moved:
            yield (
                f"The baseline {where} moves {size} bytes, more than {PASSES} times what all "
                f"ranks' tensors have ({most}): it would be a handicap."
            )


def _elements(specs: Specs) -> int:
    return sum(math.prod(spec.shape) for spec in specs.values())


def _bytes(specs: Specs) -> int:
    return sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs.values())
