"""Predicted against measured time as an SVG, both axes logarithmic; nothing but text is needed."""

import math
from collections.abc import Sequence
from itertools import cycle
from xml.sax.saxutils import escape

from benchmarks.twin.predict import Comparison

SIZE, LEFT, TOP, RIGHT, BOTTOM = 560, 64, 40, 16, 52
KINDS = (
    ("GEMM alone", "#444444", lambda kernel: kernel == "gemm"),
    ("GEMM with communication", "#c0392b", lambda kernel: "gemm" in kernel),
    ("collective, small (ll)", "#2e7d32", lambda kernel: kernel.endswith("_ll")),
    ("collective", "#1f5fa8", lambda kernel: True),
)

SHAPES = (  # of a point, around the origin
    "m-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0z",  # circle
    "m0 -4.2l4.2 7.2h-8.4z",  # triangle
)


def svg(comparisons: Sequence[Comparison]) -> str:
    """The picture: a shape for each machine; filled points validate, hollow ones were fitted to;
    dashed lines are +-30 %."""
    predictions = [p for c in comparisons for p in c.predictions]
    values = [p.us for p in predictions] + [p.point.us for p in predictions]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def x(us: float) -> float:
        return LEFT + (math.log10(us) - low) / (high - low) * (SIZE - LEFT - RIGHT)

    def y(us: float) -> float:
        return SIZE - BOTTOM - (math.log10(us) - low) / (high - low) * (SIZE - TOP - BOTTOM)

    first, last = 10.0**low, 10.0**high
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" width="{SIZE}" '
        f'height="{SIZE}" font-family="sans-serif" font-size="12">',
        f'<rect width="{SIZE}" height="{SIZE}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="13">{_title(comparisons)}</text>',
    ]
    for power in range(low, high + 1):
        at = 10.0**power
        parts += [
            f'<path d="M{x(at):.1f} {y(first):.1f}V{y(last):.1f}M{x(first):.1f} {y(at):.1f}'
            f'H{x(last):.1f}" stroke="#dddddd"/>',
            f'<text x="{x(at):.1f}" y="{SIZE - BOTTOM + 18}" text-anchor="middle">{at:g}</text>',
            f'<text x="{LEFT - 6}" y="{y(at) + 4:.1f}" text-anchor="end">{at:g}</text>',
        ]
    for ratio, style in (
        (1.0, ""),
        (1.3, ' stroke-dasharray="4 4"'),
        (0.7, ' stroke-dasharray="4 4"'),
    ):
        start, end = max(first, first / ratio), min(last, last / ratio)
        parts.append(
            f'<path d="M{x(start):.1f} {y(start * ratio):.1f}L{x(end):.1f} {y(end * ratio):.1f}" '
            f'stroke="#888888"{style}/>'
        )
    for comparison, shape in zip(comparisons, cycle(SHAPES), strict=False):
        for p in comparison.predictions:
            colour = next(colour for _, colour, has in KINDS if has(p.point.kernel))
            fill = "none" if comparison.set_of(p) == "fit" else colour
            parts.append(
                f'<path class="point" d="{_drawn(shape, x(p.point.us), y(p.us))}" fill="{fill}" '
                f'fill-opacity="0.7" stroke="{colour}"/>'
            )
    for i, (name, colour, _) in enumerate(KINDS):
        at = TOP + 14 + 17 * i
        parts.append(f'<circle cx="{LEFT + 14}" cy="{at - 4}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 24}" y="{at}">{escape(name)}</text>')
    at = TOP + 14 + 17 * len(KINDS)
    for comparison, shape in zip(comparisons, cycle(SHAPES), strict=False):
        parts.append(f'<path d="{_drawn(shape, LEFT + 14, at - 4)}" fill="#888888"/>')
        parts.append(f'<text x="{LEFT + 24}" y="{at}">{escape(comparison.measured.machine)}</text>')
        at += 17
    parts += [
        f'<text x="{LEFT + 10}" y="{at}">hollow: of the fit set; dashed: 30 % off</text>',
        f'<text x="{SIZE / 2}" y="{SIZE - 10}" text-anchor="middle">measured, us</text>',
        f'<text transform="translate(16 {SIZE / 2}) rotate(-90)" text-anchor="middle">'
        "predicted, us</text>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _title(comparisons: Sequence[Comparison]) -> str:
    points = ", ".join(f"{len(c.predictions)} points on {c.measured.machine}" for c in comparisons)
    return escape(f"Predicted against measured: {points}")


def _drawn(shape: str, x: float, y: float) -> str:
    return f"M{x:.1f} {y:.1f}{shape}"
