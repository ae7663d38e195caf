"""What a bundle's manifest says about how its verdict was reached. The manifest is untrusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MAX_SHAPES = 64
_SEED_LIMIT = 1 << 63


@dataclass(frozen=True)
class Reproduction:
    """How to judge a bundle's kernel as it was judged; None where the manifest does not tell."""

    problem: str | None = None
    target: str | None = None
    shapes: tuple[str, ...] | None = None
    seed: int | None = None


def reproduction(manifest: Mapping[str, Any]) -> Reproduction:
    """Read what is needed; anything out of form counts as not told."""
    verdict = manifest.get("verdict")
    seed = verdict.get("seed") if isinstance(verdict, Mapping) else None
    timings = manifest.get("timings")
    shapes = [
        timing["shape"]
        for timing in (timings if isinstance(timings, list) else ())
        if isinstance(timing, Mapping) and isinstance(timing.get("shape"), str)
    ]
    return Reproduction(
        problem=_text(manifest.get("problem")),
        target=_text(manifest.get("target")),
        shapes=tuple(shapes) if 0 < len(shapes) <= _MAX_SHAPES else None,
        seed=seed if type(seed) is int and 0 <= seed < _SEED_LIMIT else None,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
