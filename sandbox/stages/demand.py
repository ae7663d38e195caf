"""Whether a kernel does where it is timed what it does where it is compared.

In timing mode nothing is computed, so nothing can be compared; what the kernel asks of its machine
(bytes of tiles, operations, signals) is counted alike in both modes. At one shape the two must
agree, rank by rank: a kernel that can tell a timing run from a real one, by the number of its
blocks or by a function that is never called, cannot use it. From a small shape to a large one each
rank's traffic must grow as the operator's does: a rank that rests only where it is timed shows.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

# With as many blocks there must be as much work; with all of a machine's a little less is possible
# where a kernel does something once per block.
EQUAL_SHARE, SAME_SHARE = 0.9999, 0.95
# A kernel may change its algorithm with the size; one that reads every peer's part, for two phases
# that read parts of them, has W / 2 times the traffic.
_LEAST_OF_TWO_PHASES = 0.9
# Operand bytes per multiplication depend on the tile alone, but small problems add more around it.
OPERAND_SHARE = 0.25

WORDS = {
    "loaded_bytes": "bytes loaded", "stored_bytes": "bytes stored",
    "crossing_bytes": "bytes over NVLink", "flops": "floating-point operations",
    "elements": "elements worked on", "signals": "signals",
    "link_out_bytes": "bytes sent to peers", "link_in_bytes": "bytes received from peers",
}  # fmt: skip


def figures(report: Mapping[str, Any], key: str = "demand") -> list[dict[str, float]]:
    """What each rank asked for, or with "ranks" used, as the engine counted it; [] without."""
    ranks = report.get(key)
    if not isinstance(ranks, list):
        return []
    return [
        {name: number(rank.get(name)) for name in WORDS}
        for rank in ranks
        if isinstance(rank, Mapping)
    ]


def number(value: object) -> float:
    """A finite number from an untrusted report, or 0."""
    usable = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if usable and math.isfinite(value) else 0.0  # type: ignore[arg-type]


def less_work(
    compared: Sequence[Mapping[str, float]],
    timed: Sequence[Mapping[str, float]],
    share: float = EQUAL_SHARE,
) -> str | None:
    """What a timing run leaves out of what the run at the same shape did that was compared."""
    if len(compared) != len(timed):
        return f"the run has figures of {len(timed)} ranks instead of {len(compared)}"
    for rank, (real, seen) in enumerate(zip(compared, timed, strict=True)):
        for name, wanted in real.items():
            if seen.get(name, 0.0) < share * wanted:
                return (
                    f"rank {rank} accounts for {seen.get(name, 0.0):.4g} {WORDS[name]}, and for "
                    f"{wanted:.4g} at the same shape where the result is compared"
                )
    return None


def grows_less(
    small: Mapping[str, Any], large: Mapping[str, Any], bytes_factor: float, world_size: int
) -> str | None:
    """What a rank leaves out at a large shape, judged by two timing runs.

    `bytes_factor` is by how much the bytes that the operator must move over NVLink grow.
    """
    share = min(0.5, 2 / world_size) * _LEAST_OF_TWO_PHASES
    pairs = zip(figures(small, "ranks"), figures(large, "ranks"), strict=False)
    for rank, (before, after) in enumerate(pairs):
        for name in ("link_out_bytes", "link_in_bytes"):
            expected = before[name] * bytes_factor
            if after[name] < share * expected:
                return (
                    f"rank {rank} accounts for {after[name]:.4g} {WORDS[name]}, and by what it "
                    f"does at a smaller shape it should be about {expected:.4g}"
                )
    demands = zip(figures(small), figures(large), strict=False)
    for rank, (before, after) in enumerate(demands):
        if before["flops"] and after["flops"]:
            wanted = before["loaded_bytes"] / before["flops"]
            found = after["loaded_bytes"] / after["flops"]
            if found < OPERAND_SHARE * wanted:
                return (
                    f"rank {rank} loads {found:.3g} bytes per operation, and {wanted:.3g} at a "
                    "smaller shape"
                )
    return None
