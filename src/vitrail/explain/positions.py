"""What a model knows of places, as a figure: its position table, and how alike the places look to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from ..errors import UsageError
from ..model.vit import ViT
from ..spec import Grid
from .figures import bare, colours, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_TILES = 14
"""Tiles on each side; a larger grid shows every second, third ... row and column of places."""


class Places(NamedTuple):
    """A table with one row per place, and what to say of it."""

    table: np.ndarray
    """Drawn as it is, [rows, numbers]."""
    patches: np.ndarray
    """Vectors of the patches only, whose angles to each other are compared, [N, numbers]."""
    grid: Grid
    title: str
    across: str
    """What the columns are."""
    down: str
    """What the rows are."""


def positions(model: ViT, cmap: str = "viridis") -> Figure:
    """The position table [rows, D] as an image, and one small map per patch: its likeness to every other.

    A model that knows places by rotation alone shows its table of angles, and the likeness is the mean cosine of the
    angle between two places, which is what rotation leaves of equal queries and keys.

    Raises:
        UsageError: the model has no positions, or there is no such colour map.
    """
    places = _places_of(model)
    colours(cmap)
    figure = new_figure(14.0, 5.6)
    left, right = figure.subplots(1, 2, width_ratios=(1.3, 1.0))
    drawn = left.imshow(places.table, cmap, aspect="auto", interpolation="nearest")
    figure.colorbar(drawn, ax=left, shrink=0.75)
    left.set(xlabel=places.across, ylabel=places.down)
    left.set_title(places.title)
    _tiles(right, cosines(places.patches), places.grid, cmap)
    return figure


def cosines(vectors: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N N"]:
    """Cosine of the angle between every two rows; a row of zeros is like nothing."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths == 0, 1, lengths)
    return unit @ unit.T


def _places_of(model: ViT) -> Places:
    grid = model.config.grid
    if model.positions.table is not None:
        table = model.positions.table.detach().float().cpu().numpy()
        kind = "trained" if isinstance(model.positions.table, torch.nn.Parameter) else "fixed"
        title = f"{model.config.positions} positions ({kind}): [{table.shape[0]}, {table.shape[1]}]"
        return Places(table, table[-grid.patches :], grid, title, "number within the token", "token")
    if model.config.rotary == "none":
        if model.config.relative:
            raise UsageError("This model knows places by relative tables in every block, of which there is no figure.")
        raise UsageError("This model has no positions to draw: it adds no table and rotates nothing.")
    angles = model.rotary.angles(grid, torch.device("cpu")).double().numpy()
    title = f"{model.config.rotary} rotary positions: angles of [{angles.shape[0]}, {angles.shape[1]}], radians"
    return Places(
        angles, np.hstack([np.cos(angles), np.sin(angles)]), grid, title, "pair of numbers in a head", "patch"
    )


def laid_out(likeness: np.ndarray, grid: Grid) -> tuple[np.ndarray, int]:
    """One map [rows, columns] per place, laid out as the places are, thin gaps of NaN between; and which of the rows
    and columns of places are there: every first, every second ..."""
    every = -(-max(grid) // MOST_TILES)
    rows, columns = range(0, grid.rows, every), range(0, grid.columns, every)
    canvas = np.full((len(rows) * (grid.rows + 1) - 1, len(columns) * (grid.columns + 1) - 1), np.nan)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            top, left = i * (grid.rows + 1), j * (grid.columns + 1)
            one = likeness[row * grid.columns + column].reshape(grid)
            canvas[top : top + grid.rows, left : left + grid.columns] = one
    return canvas, every


def _tiles(axes: Axes, likeness: np.ndarray, grid: Grid, cmap: str) -> None:
    canvas, every = laid_out(likeness, grid)
    rows, columns = -(-grid.rows // every), -(-grid.columns // every)
    drawn = axes.imshow(canvas, cmap, vmin=min(0.0, float(likeness.min())), vmax=1.0, interpolation="nearest")
    assert axes.figure is not None
    axes.figure.colorbar(drawn, ax=axes, shrink=0.75)
    shown = "" if every == 1 else f", every {every}. row and column"
    axes.set_title(f"cosine similarity: {rows} x {columns} places, {grid.rows} x {grid.columns} each{shown}")
    bare(axes)
