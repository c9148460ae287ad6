"""A chart of figures with their intervals, one line each, as SVG text; the page's style sheet gives the colours."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from .chart import Range, ticks

WIDTH, ROW = 680, 24
LEFT, RIGHT, TOP, BOTTOM = 170, 66, 8, 30
LONGEST = 24
"""Letters of a name; the whole of a longer one is told when it is pointed at."""


class Dot(NamedTuple):
    """One line of the chart."""

    name: str
    value: float
    interval: tuple[float, float] | None


def draw(rows: Sequence[Dot], span: Range, title: str, guide: float) -> str:
    """An SVG element: names on the left, dots and intervals, values on the right, and a dashed line at `guide`.

    Args:
        span: what the axis shows; figures beyond it stand at its ends.
        title: what a screen reader says.
    """
    height = TOP + ROW * len(rows) + BOTTOM
    base = height - BOTTOM
    parts = [f'<svg class="chart dots" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">']
    for tick in ticks(span, 6):
        across = _across(tick, span)
        parts.append(f'<line class="grid" x1="{across:.1f}" x2="{across:.1f}" y1="{TOP}" y2="{base}"/>')
        parts.append(f'<text class="tick" x="{across:.1f}" y="{base + 18}" text-anchor="middle">{tick:g}</text>')
    middle = _across(guide, span)
    parts.append(f'<polyline class="line guide" points="{middle:.1f},{TOP} {middle:.1f},{base}"/>')
    for number, row in enumerate(rows):
        parts += _row(row, TOP + ROW * (number + 0.5), span)
    return "\n".join([*parts, "</svg>"])


def _row(row: Dot, high: float, span: Range) -> list[str]:
    name = row.name if len(row.name) <= LONGEST else f"{row.name[: LONGEST - 1]}…"
    where = f'y="{high + 4:.1f}"'
    parts = [f'<text class="tick name" x="{LEFT - 12}" {where} text-anchor="end">{escape(name)}</text>']
    if row.interval is not None:
        low, top = (_across(value, span) for value in row.interval)
        parts.append(f'<line class="span" x1="{low:.1f}" x2="{top:.1f}" y1="{high:.1f}" y2="{high:.1f}"/>')
    kind = "dot" if row.interval is not None else "dot faint"
    parts.append(f'<circle class="{kind}" cx="{_across(row.value, span):.1f}" cy="{high:.1f}" r="4"/>')
    parts.append(f'<text class="tick" x="{WIDTH - RIGHT + 16}" {where}>{row.value:.3f}</text>')
    return parts


def _across(value: float, span: Range) -> float:
    low, high = span
    return LEFT + (min(max(value, low), high) - low) / (high - low) * (WIDTH - LEFT - RIGHT)
