"""Small line charts as SVG text; the page's style sheet gives the colours, so they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 22, 12, 42
Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve. Points that are not finite are left out."""

    name: str
    points: Sequence[tuple[float, float]]
    """(x, y), x rising."""
    style: Literal["first", "second", "faint", "guide", "points"] = "first"
    """How the style sheet draws it; points are not joined."""
    dots: bool = False
    """Mark every point: for figures that were measured a few times only."""
    spans: Sequence[tuple[float, float]] = ()
    """Of each point where its true height may lie."""


def draw(lines: Sequence[Line], x_label: str, y_format: Callable[[float], str], x: Range, y: Range, title: str) -> str:
    """An SVG element with axes, round ticks and the given lines; `title` is what a screen reader says."""
    x_ticks, y_ticks = ticks(x, 5), ticks(y, 5)
    place = _Place(x, y)
    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for tick in y_ticks:
        high = place.y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{high:.1f}" y2="{high:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{high + 4:.1f}" text-anchor="end">{y_format(tick)}</text>')
    for tick in x_ticks:
        across, base = place.x(tick), HEIGHT - BOTTOM
        parts.append(f'<text class="tick" x="{across:.1f}" y="{base + 17}" text-anchor="middle">{tick:,.6g}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>')
    parts.extend(_curve(line, place) for line in lines)
    return "\n".join([*parts, "</svg>"])


def spread(values: Sequence[float], floor: float | None = None, ceiling: float | None = None) -> Range:
    """A range around the finite values with a little air, held inside floor and ceiling; never empty."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    air = 0.06 * (high - low) or abs(high) * 0.1 or 0.5
    low, high = low - air, high + air
    return (low if floor is None else max(low, floor)), (high if ceiling is None else min(high, ceiling))


def ticks(span: Range, about: int) -> list[float]:
    """Round numbers inside a range: steps of 1, 2 or 5 times a power of ten."""
    low, high = span
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


@dataclass(frozen=True)
class _Place:
    """From figures to points of the drawing."""

    x_range: Range
    y_range: Range

    def x(self, value: float) -> float:
        low, high = self.x_range
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return HEIGHT - BOTTOM - (min(max(value, low), high) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)


def _curve(line: Line, place: _Place) -> str:
    points = [(place.x(x), place.y(y)) for x, y in line.points if math.isfinite(y)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    bars = [
        f'<line class="bar {line.style}" x1="{place.x(x):.1f}" x2="{place.x(x):.1f}" y1="{place.y(low):.1f}" '
        f'y2="{place.y(high):.1f}"/>'
        for (x, _), (low, high) in zip(line.points, line.spans, strict=bool(line.spans))
    ]
    parts = (
        [f'<polyline class="line {line.style}" points="{path}"/>'] if len(points) > 1 and line.style != "points" else []
    )
    if line.dots or len(points) == 1:
        parts.extend(f'<circle class="dot {line.style}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for x, y in points)
    return "".join([*bars, *parts])
