"""Predicted against measured time as an SVG, both axes logarithmic; nothing but text is needed."""

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from benchmarks.twin.predict import Prediction

SIZE, LEFT, TOP, RIGHT, BOTTOM = 560, 64, 40, 16, 52
KINDS = (
    ("GEMM alone", "#444444", lambda kernel: kernel == "gemm"),
    ("GEMM with communication", "#c0392b", lambda kernel: "gemm" in kernel),
    ("collective, small (ll)", "#2e7d32", lambda kernel: kernel.endswith("_ll")),
    ("collective", "#1f5fa8", lambda kernel: True),
)


def svg(predictions: Sequence[Prediction], fit: set[str], title: str) -> str:
    """The picture: filled points validate, hollow ones were fitted to; dashed lines are +-30 %."""
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
        f'<text x="{LEFT}" y="22" font-size="14">{escape(title)}</text>',
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
    for p in predictions:
        colour = next(colour for _, colour, has in KINDS if has(p.point.kernel))
        fill = "none" if p.point.group in fit else colour
        parts.append(
            f'<circle cx="{x(p.point.us):.1f}" cy="{y(p.us):.1f}" r="3.2" fill="{fill}" '
            f'fill-opacity="0.7" stroke="{colour}"/>'
        )
    for i, (name, colour, _) in enumerate(KINDS):
        at = TOP + 14 + 17 * i
        parts.append(f'<circle cx="{LEFT + 14}" cy="{at - 4}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 24}" y="{at}">{escape(name)}</text>')
    parts += [
        f'<text x="{LEFT + 10}" y="{TOP + 82}">hollow: of the fit set; dashed: 30 % off</text>',
        f'<text x="{SIZE / 2}" y="{SIZE - 10}" text-anchor="middle">measured, us</text>',
        f'<text transform="translate(16 {SIZE / 2}) rotate(-90)" text-anchor="middle">'
        "predicted, us</text>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"
