"""What rotation tells attention of places: how a product of equal queries and keys falls off with their offset."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64

from ...errors import UsageError
from ...model.vit import ViT
from ...spec import Grid
from .drawing import LIKENESS, SOFT, WIDTH, named, page, panels, scale
from .shown import Choices, Drawn, Shown

SOURCE = "Su et al. 2021 (RoFormer), section 3.4.3; Heo et al. 2024 for rows and columns"
SMALL = 16
"""Pairs of numbers that are shown one by one."""


def rotary_kernel(model: ViT, shown: Shown, choices: Choices) -> Drawn:
    """The mean over all pairs of numbers of a head, and single pairs: cosines of the angle between two places, by how
    many rows and columns apart they are.

    No pictures and no options.

    Raises:
        UsageError: the model does not tell places by rotation.
    """
    waves = kernel_of(model, shown.grid)  # [half, 2 rows - 1, 2 columns - 1]
    chosen = np.unique(np.rint(np.linspace(0, len(waves) - 1, SMALL)).astype(np.int64))
    lines = -(-len(chosen) // 4)
    aspect = waves.shape[1] / waves.shape[2]
    figure = page(
        max(WIDTH / 2 * aspect * 0.92, lines * (WIDTH / 8 * aspect + 0.2)),
        f"What {model.config.rotary} rotation tells of places",
        f"Product of an equal query and key, of length 1, {shown.grid.rows} x {shown.grid.columns} patches: the middle "
        f"is the same place. Left: the mean over the {len(waves)} pairs of numbers of a head, as if all were equally "
        f"large; what is learnt weighs them. Right: single pairs. {SOURCE}.",
    )
    parts = figure.add_gridspec(1, 2, width_ratios=(1.1, 1.0))
    left, right = (figure.add_subfigure(parts[0, side]) for side in (0, 1))
    ((whole,),) = panels(left, 1, 1)
    reach = (-shown.grid.columns + 0.5, shown.grid.columns - 0.5, shown.grid.rows - 0.5, -shown.grid.rows + 0.5)
    drawn = whole.imshow(waves.mean(0), LIKENESS, vmin=-1, vmax=1, interpolation="nearest", extent=reach)
    whole.set_xticks([-shown.grid.columns + 1, 0, shown.grid.columns - 1])
    whole.set_yticks([-shown.grid.rows + 1, 0, shown.grid.rows - 1])
    whole.tick_params(labelsize=9, colors=SOFT)
    whole.set_xlabel("columns apart", fontsize=9.5)
    whole.set_ylabel("rows apart", fontsize=9.5)
    named(whole, "mean of all pairs")
    scale(left, drawn, [whole], "product")
    cells = [axes for row in panels(right, lines, 4) for axes in row]
    for pair, axes in zip(chosen.tolist(), cells, strict=False):
        axes.imshow(waves[pair], LIKENESS, vmin=-1, vmax=1, interpolation="nearest")
        axes.set_title(f"pair {pair}", fontsize=8.5)
    facts = {"source": SOURCE, "rotary": model.config.rotary, "pairs": len(waves)}
    return Drawn(figure, {"kernel": waves.mean(0), "pairs": waves}, facts)


def kernel_of(model: ViT, grid: Grid) -> Float64[np.ndarray, "half down across"]:
    """Cosine of the angle between two places, for every pair of numbers and every offset; zero offset in the middle.

    Every rotation here turns a pair by an angle that grows evenly with the row or the column, so that only the offset
    counts.

    Raises:
        UsageError: the model does not rotate.
    """
    if model.config.rotary == "none":
        raise UsageError(
            "This model does not tell places by rotation. Its position table is the figure position-similarity."
        )
    angles = model.rotary.angles(grid, torch.device("cpu")).double().numpy()
    angles = (angles - angles[0]).reshape(*grid, -1)  # [rows, columns, half], from the first patch
    down, across = (np.concatenate([-side[:0:-1], side]) for side in (angles[:, 0], angles[0]))
    both = down[:, None] + across[None]  # [2 rows - 1, 2 columns - 1, half]
    return np.cos(both).transpose(2, 0, 1).astype(np.float64)
