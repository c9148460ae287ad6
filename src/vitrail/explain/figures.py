"""The papers' figures for any picture: the patch grid with its numbers, and one patch as its strip of numbers.

Every function gives a matplotlib Figure of its own; nothing global of matplotlib is touched.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8

from ..errors import UsageError
from ..files import atomic
from ..spec import Grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEADED = "#f4b942"
"""Colour of the lines between patches."""


def patch_grid(
    image: UInt8[np.ndarray, "H W C"], patch: tuple[int, int], numbered: bool = True, cmap: str = "viridis"
) -> Figure:
    """The picture with its patches drawn and numbered 1 .. N in reading order.

    Args:
        cmap: matplotlib's name of the colours for one channel; three channels are shown as they are.

    Raises:
        UsageError: a side is not a multiple of the patch, or there is no such colour map.
    """
    grid = grid_of(image, patch)
    height, width = image.shape[:2]
    figure = new_figure(8.0, 8.0 * height / width + 0.5)
    axes = figure.add_subplot()
    show(axes, image, cmap)
    thin = 1.6 if grid.patches <= 100 else 0.7
    axes.hlines(np.arange(0, height + 1, patch[0]) - 0.5, -0.5, width - 0.5, LEADED, linewidth=thin, clip_on=False)
    axes.vlines(np.arange(0, width + 1, patch[1]) - 0.5, -0.5, height - 0.5, LEADED, linewidth=thin, clip_on=False)
    if numbered:
        _number(axes, grid, patch)
    bare(axes)
    axes.set_title(
        f"[{height}, {width}, {image.shape[2]}] in patches of {patch[0]} x {patch[1]}: "
        f"{grid.rows} rows x {grid.columns} columns = {grid.patches} tokens"
    )
    return figure


def token_strip(image: UInt8[np.ndarray, "H W C"], patch: tuple[int, int], token: int, cmap: str = "viridis") -> Figure:
    """Where patch number `token` (1 .. N) lies, the patch itself, and the flat strip of numbers that it becomes.

    The strip runs channel, row, column: what the patch projection reads.

    Raises:
        UsageError: as `patch_grid`, or a token outside 1 .. N.
    """
    grid = grid_of(image, patch)
    if not 1 <= token <= grid.patches:
        raise UsageError(f"token must lie in 1..{grid.patches} for {grid.rows} x {grid.columns} patches. Got {token}.")
    row, column = divmod(token - 1, grid.columns)
    top, left = row * patch[0], column * patch[1]
    cut = image[top : top + patch[0], left : left + patch[1]]
    flat = cut.transpose(2, 0, 1).reshape(-1)
    figure = new_figure(10.0, 5.4)
    whole, one, strip = _places(figure, image.shape[1] / image.shape[0])
    show(whole, image, cmap)
    _frame(whole, top, left, patch)
    whole.set_title(f"row {row + 1}, column {column + 1}")
    show(one, cut, cmap)
    one.set_title(f"patch {token} of {grid.patches}: [{', '.join(map(str, cut.shape))}]")
    _strip(strip, flat, patch, cmap)
    strip.set_title(f"token {token} before projection: {' x '.join(map(str, cut.shape))} = [{len(flat)}] numbers")
    for axes in (whole, one):
        bare(axes)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, in one step and without a date in it: the same figure gives the same file."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=150, metadata={"Software": None})
    atomic.write_bytes(Path(path), data.getvalue())


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in inches, laid out by matplotlib, on white."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def grid_of(image: UInt8[np.ndarray, "H W C"], patch: tuple[int, int]) -> Grid:
    """Rows and columns of patches in a picture.

    Raises:
        UsageError: a side is not a multiple of the patch.
    """
    for side, pixels, step in zip(("height", "width"), image.shape, patch, strict=False):
        if step < 1 or pixels % step:
            raise UsageError(f"The image {side} {pixels} is not a multiple of the patch {side} {step}.")
    return Grid(image.shape[0] // patch[0], image.shape[1] // patch[1])


def show(axes: Axes, image: UInt8[np.ndarray, "H W C"], cmap: str) -> None:
    """One channel through the colour map, three as RGB, of any other count the first."""
    if image.shape[2] == 3:
        axes.imshow(image, interpolation="nearest")
    else:
        axes.imshow(image[..., 0], colours(cmap), vmin=0, vmax=255, interpolation="nearest")


def colours(cmap: str) -> str:
    """The name itself, if matplotlib has such a colour map.

    Raises:
        UsageError: it has none; the nearest names are listed.
    """
    import difflib

    from matplotlib import colormaps

    if cmap not in colormaps:
        near = difflib.get_close_matches(cmap, list(colormaps), n=3) or ["viridis", "cividis", "gray"]
        raise UsageError(f"There is no colour map named {cmap!r}. Did you mean {' or '.join(near)}?")
    return cmap


def bare(axes: Axes) -> None:
    """No ticks and no frame around a picture."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _number(axes: Axes, grid: Grid, patch: tuple[int, int]) -> None:
    from matplotlib.patheffects import withStroke

    points = 8.0 * 72 / grid.columns  # a patch's width on paper
    size = min(17.0, 0.36 * points * min(1.0, patch[0] / patch[1]))
    edge = withStroke(linewidth=max(1.0, size / 6), foreground="#1b1b22")
    for i in range(grid.patches):
        row, column = divmod(i, grid.columns)
        y, x = (row + 0.5) * patch[0] - 0.5, (column + 0.5) * patch[1] - 0.5
        axes.text(
            x, y, str(i + 1), color="white", fontsize=size, ha="center", va="center", path_effects=[edge],
        )  # fmt: skip


def _places(figure: Figure, aspect: float) -> tuple[Axes, Axes, Axes]:
    """The whole picture and the patch side by side, the strip below both."""
    cells = figure.add_gridspec(2, 2, width_ratios=(max(aspect, 1.0), 1.0), height_ratios=(4.2, 1.0))
    return figure.add_subplot(cells[0, 0]), figure.add_subplot(cells[0, 1]), figure.add_subplot(cells[1, :])


def _frame(axes: Axes, top: int, left: int, patch: tuple[int, int]) -> None:
    from matplotlib.patches import Rectangle

    place = (left - 0.5, top - 0.5)
    axes.add_patch(Rectangle(place, patch[1], patch[0], fill=False, edgecolor=LEADED, linewidth=3, clip_on=False))


def _strip(axes: Axes, flat: np.ndarray, patch: tuple[int, int], cmap: str) -> None:
    axes.imshow(flat[None], colours(cmap), vmin=0, vmax=255, aspect="auto", interpolation="nearest")
    area = patch[0] * patch[1]
    for channel in range(1, len(flat) // area):
        axes.axvline(channel * area - 0.5, color=LEADED, linewidth=2)
    axes.set(yticks=[], xlabel="channel, then row, then column of the patch; values 0 to 255")
    axes.set_xticks(np.unique(np.linspace(0, len(flat) - 1, 11).round()))
