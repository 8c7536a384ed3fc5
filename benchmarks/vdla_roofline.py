"""Roofline of an accelerator as SVG: operations a second over operations per byte of DRAM (thesis-chen Figure 4.10)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, TOP = 640, 420, 60, 30
RIGHT, BOTTOM = WIDTH - 20, HEIGHT - 50
COLORS = ("#999999", "#d95f02", "#1b9e77")


@dataclass(frozen=True)
class Point:
    """A layer: operations per byte of DRAM, and 10^9 operations a second."""

    name: str
    intensity: float
    rate: float


def roofline(peak: float, bandwidth: float, series: Mapping[str, Sequence[Point]]) -> str:
    """The drawing. ``peak``: 10^9 operations a second; ``bandwidth``: 10^9 bytes a second. Axes are logarithmic."""
    every = [point for points in series.values() for point in points]
    low_x, high_x = 1.0, 2.0 ** math.ceil(math.log2(max([2 * peak / bandwidth, *(p.intensity for p in every)])))
    low_y = 2.0 ** math.floor(math.log2(min([peak / 8, *(p.rate for p in every)])))
    high_y = 2.0 ** math.ceil(math.log2(peak * 1.01))

    def x(value: float) -> float:
        return LEFT + (RIGHT - LEFT) * math.log(value / low_x) / math.log(high_x / low_x)

    def y(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * math.log(value / low_y) / math.log(high_y / low_y)

    ridge, first = peak / bandwidth, max(low_x, low_y / bandwidth)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        f'font-size="11"><rect width="100%" height="100%" fill="white"/>',
        f'<polyline fill="none" stroke="black" points="{x(first):.1f},{y(first * bandwidth):.1f} '
        f'{x(ridge):.1f},{y(peak):.1f} {x(high_x):.1f},{y(peak):.1f}"/>',
    ]
    for power in range(int(math.log2(low_x)), int(math.log2(high_x)) + 1, 2):
        lines.append(f'<text x="{x(2.0**power):.1f}" y="{BOTTOM + 16}" text-anchor="middle">{2**power}</text>')
    for power in range(int(math.log2(low_y)), int(math.log2(high_y)) + 1):
        lines.append(f'<text x="{LEFT - 6}" y="{y(2.0**power) + 4:.1f}" text-anchor="end">{2.0**power:g}</text>')
    middle = (LEFT + RIGHT) / 2
    lines.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">operations per byte of DRAM</text>')
    lines.append(f'<text x="{LEFT}" y="{TOP - 10}">10^9 operations a second (at most {peak:g})</text>')
    for number, (name, points) in enumerate(series.items()):
        color = COLORS[number % len(COLORS)]
        lines.append(f'<circle cx="{RIGHT - 90}" cy="{BOTTOM - 40 + 16 * number}" r="4" fill="{color}"/>')
        lines.append(f'<text x="{RIGHT - 80}" y="{BOTTOM - 36 + 16 * number}">{escape(name)}</text>')
        for point in points:
            place = f'cx="{x(point.intensity):.1f}" cy="{y(point.rate):.1f}"'
            title = f"{escape(point.name)}: {point.intensity:.1f} operations a byte, {point.rate:.1f}"
            lines.append(f'<circle {place} r="4" fill="{color}" fill-opacity="0.8"><title>{title}</title></circle>')
    return "\n".join([*lines, "</svg>"]) + "\n"
