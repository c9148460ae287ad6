"""One page for a picture: the picture, and its maps by all methods side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, UInt8

from .figures import bare, new_figure
from .map import Scale
from .overlay import OPACITY, blended, coloured, enlarged, shares_of, stretched
from .words import LEADING, wrapped, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS = 5
"""Pictures in a row."""
WIDE, TALL = 2.3, 2.6
"""Inches of one picture at most."""
EDGE, GAP = 0.3, 0.25
TITLE, NAME, TEXT = 14.0, 9.5, 7.0
COLOURING = "Purple to yellow: the brighter, the more. Of two sides orange is for it, blue against it."
LINES = 5
"""Lines of text below a picture's name."""


class Panel(NamedTuple):
    """One method's part of the page."""

    name: str
    line: str
    """The honest line, or why there is no map."""
    heat: Float[np.ndarray, "rows columns"] | None
    """None where there is no map: the picture stands there as it is."""
    scale: Scale = "positive"
    unit: str = ""
    """What the map's numbers count."""


def sheet(
    image: UInt8[np.ndarray, "H W C"],
    patch: tuple[int, int],
    panels: Sequence[Panel],
    title: str,
    hidden: Bool[np.ndarray, "rows columns"] | None = None,
    opacity: float = OPACITY,
    own: UInt8[np.ndarray, "h w C"] | None = None,
) -> Figure:
    """What the model sees, then the picture under every map, each with its name, its numbers and its line.

    Args:
        hidden: patches whose heat is left out.
        own: the same part of the picture in its own pixels; None where there is nothing but `image`.

    Raises:
        UsageError: opacity outside 0..1.
    """
    seen, large = enlarged(coloured(image)), enlarged(coloured(image if own is None else own))
    aspect = large.shape[1] / large.shape[0]
    wide = min(WIDE, TALL * aspect)
    shown = [Panel("what the model sees", f"{image.shape[0]} \u00d7 {image.shape[1]} pixels", None), *panels]
    across = min(ACROSS, len(shown))
    down = -(-len(shown) // across)
    paper = 2 * EDGE + across * WIDE + (across - 1) * GAP
    words = LEADING * (NAME + LINES * TEXT) + 0.25
    cell, head = wide / aspect + words, 0.32 + LEADING * (TITLE + TEXT)
    tall = head + down * cell
    figure = new_figure(paper, tall)
    figure.set_layout_engine("none")
    write(figure, wrapped((title,), paper - 2 * EDGE, TITLE)[:1], EDGE, tall - 0.15, TITLE, bold=True)
    write(figure, [COLOURING], EDGE, tall - 0.17 - LEADING * TITLE, TEXT, faint=True)
    for place, panel in enumerate(shown):
        left = EDGE + place % across * (WIDE + GAP)
        top = tall - head - place // across * cell
        axes = figure.add_axes((left / paper, (top - wide / aspect) / tall, wide / paper, wide / aspect / tall))
        mixed = large if place else seen
        if panel.heat is not None:
            shares = shares_of(panel.heat, panel.scale, hidden)
            mixed = blended(large, stretched(shares, image.shape[:2], patch, large.shape[:2]), panel.scale, opacity)
        axes.imshow(mixed, aspect="auto", interpolation="nearest")
        bare(axes)
        below = top - wide / aspect - 0.06
        write(figure, [panel.name], left, below, NAME, bold=True)
        lines = wrapped((_numbers(panel), panel.line), WIDE, TEXT)[:LINES]
        write(figure, lines, left, below - LEADING * NAME, TEXT)
    return figure


def _numbers(panel: Panel) -> str:
    """From where to where the map goes, and what it counts."""
    return "" if panel.heat is None else f"{panel.heat.min():.2g} to {panel.heat.max():.2g}: {panel.unit}"
