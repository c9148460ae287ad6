"""Words around pictures: lines that fit on the paper, written at places in inches."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEADING = 1.5 / 72
"""Inches from line to line, for each point of a letter's size."""
INK, FAINT = "#1b1b22", "#5d5d6b"


def wrapped(lines: Sequence[str], inches: float, size: float) -> list[str]:
    """Lines no longer than so many inches, for letters of `size` points, each 0.6 of that wide."""
    letters = max(8, int(inches * 72 / (0.6 * size)))
    return [part for line in lines for part in textwrap.wrap(line, letters)]


def write(
    figure: Figure, lines: Sequence[str], left: float, top: float, size: float, bold: bool = False, faint: bool = False
) -> None:
    """Lines below each other, their upper left corner at so many inches from the paper's left and lower edge.

    The first is darker than the others, or all of them are bold, or faint.
    """
    paper, tall = figure.get_size_inches()
    for place, line in enumerate(lines):
        y = (top - place * LEADING * size) / tall
        colour, weight = (FAINT, "normal") if faint or (place and not bold) else (INK, "bold" if bold else "normal")
        figure.text(left / paper, y, line, fontsize=size, color=colour, weight=weight, va="top")
