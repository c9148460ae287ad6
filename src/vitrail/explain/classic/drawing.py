"""How every classic figure is laid out: a heading, panels, one honest caption; colours that everyone can tell apart."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, UInt8

from ..figures import bare, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase
    from matplotlib.image import AxesImage

HEAT = "inferno"
"""Colours of relevance and attention: dark is little, bright is much; even steps look even."""
LIKENESS = "viridis"
"""Colours of similarity."""
WIDTH = 8.0
"""Inches, so that 9 points are 10 pixels where a page shows the figure 800 pixels wide."""
INK, SOFT = "#1b1b22", "#55555f"
FIRST, SECOND = "#1f5fa8", "#d1495b"
LINE = 108
"""Letters of a caption's line."""


def page(height: float, heading: str, caption: str) -> Figure:
    """An empty figure with its heading above and its caption below; the panels go between."""
    lines = textwrap.wrap(caption.replace(" %", "\u00a0%"), LINE, break_on_hyphens=False)
    figure = new_figure(WIDTH, height + 0.45 + 0.19 * len(lines))
    figure.suptitle(heading, x=0.012, ha="left", fontsize=12.5, fontweight="bold", color=INK)
    figure.supxlabel("\n".join(lines), x=0.012, ha="left", fontsize=9, color=SOFT, linespacing=1.35)
    return figure


def panels(figure: FigureBase, rows: int, columns: int) -> list[list[Axes]]:
    """Rows of axes for pictures, without ticks."""
    made = figure.subplots(rows, columns, squeeze=False)
    for axes in made.flat:
        bare(axes)
    return [list(row) for row in made]


def photograph(axes: Axes, picture: UInt8[np.ndarray, "H W C"], title: str = "") -> None:
    """A picture as it is: three channels in colour, one in grey, of any other count the first in grey."""
    if picture.shape[2] == 3:
        axes.imshow(picture, interpolation="nearest")
    else:
        axes.imshow(picture[..., 0], "gray", vmin=0, vmax=255, interpolation="nearest")
    named(axes, title)


def heat(
    axes: Axes,
    values: Float[np.ndarray, "rows columns"],
    limits: tuple[float, float],
    title: str = "",
    cmap: str = HEAT,
) -> AxesImage:
    """A map of numbers, one square a patch, between fixed limits."""
    drawn = axes.imshow(values, cmap, vmin=limits[0], vmax=limits[1], interpolation="nearest")
    named(axes, title)
    return drawn


def scale(figure: FigureBase, drawn: AxesImage, axes: list[Axes], label: str) -> None:
    """The bar that says which colour is which number."""
    bar = figure.colorbar(drawn, ax=axes, shrink=0.8, aspect=26, pad=0.015)
    bar.set_label(label, fontsize=9, color=SOFT)
    bar.ax.tick_params(labelsize=8.5, colors=SOFT)
    bar.outline.set_visible(False)


def named(axes: Axes, title: str) -> None:
    """A panel's title."""
    axes.set_title(title, fontsize=9.5, color=INK)


def plain(axes: Axes, across: str, up: str) -> None:
    """Axes of a diagram: two labels, whole numbers across, a light frame, a fine grid."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(across, fontsize=10, color=INK)
    axes.set_ylabel(up, fontsize=10, color=INK)
    axes.tick_params(labelsize=9, colors=SOFT)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(SOFT)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.grid(color="#e4e4ea", linewidth=0.7)
    axes.set_axisbelow(True)


def spread(values: np.ndarray) -> np.ndarray:
    """0 to 1 over what there is; a flat array becomes zeros."""
    low, high = float(values.min()), float(values.max())
    return (values - low) / (high - low) if high > low else np.zeros_like(values, dtype=np.float64)


def smooth(values: Float[np.ndarray, "rows columns"], size: tuple[int, int]) -> Float[np.ndarray, "H W"]:
    """A map of patches stretched to pixels, bilinearly between their centres."""
    import torch
    import torch.nn.functional as F

    stretched = F.interpolate(torch.from_numpy(values)[None, None].double(), size, mode="bilinear", align_corners=False)
    return stretched[0, 0].numpy()


def listed(names: tuple[str, ...]) -> str:
    """The pictures' names for a caption."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def outline(axes: Axes, mask: Bool[np.ndarray, "rows columns"], colour: str = "#f5f5f5") -> None:
    """Lines around the patches of a mask, on a picture of one square a patch."""
    wide = np.pad(mask, 1)
    rows, columns = np.nonzero(wide[1:] != wide[:-1])  # between patch row r - 1 and r
    axes.hlines(rows - 0.5, columns - 1.5, columns - 0.5, colour, linewidth=1.1)
    rows, columns = np.nonzero(wide[:, 1:] != wide[:, :-1])
    axes.vlines(columns - 0.5, rows - 1.5, rows - 0.5, colour, linewidth=1.1)
