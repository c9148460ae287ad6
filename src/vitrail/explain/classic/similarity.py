"""Figure 7 (centre) of the ViT paper: how alike the position embedding of each patch is to those of all others."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64

from ...errors import UsageError
from ...model.vit import ViT
from ...spec import Grid
from ..figures import bare
from ..positions import cosines, laid_out
from .drawing import LIKENESS, WIDTH, page, scale
from .shown import Choices, Drawn, Shown

SOURCE = "Dosovitskiy et al. 2020, figure 7 (centre)"


def position_similarity(model: ViT, shown: Shown, choices: Choices) -> Drawn:
    """One small map for each place, laid out as the places are: cosines with every other place, from -1 to 1.

    No pictures and no options.

    Raises:
        UsageError: the model adds no position table.
    """
    likeness = similarity(model, shown.grid)  # [N, N]
    canvas, every = laid_out(likeness, shown.grid)
    kind = "trained" if isinstance(model.positions.table, torch.nn.Parameter) else "fixed"
    some = "" if every == 1 else f" Every {every}. row and column of places is shown."
    figure = page(
        min(WIDTH * 0.86 * canvas.shape[0] / canvas.shape[1], 9.0),
        "How alike the positions are",
        f"Cosine similarity between the {kind} position embedding ({model.config.positions}) of each of "
        f"{shown.grid.rows} x {shown.grid.columns} patches and those of all patches; each small map is one patch's "
        f"view of the whole picture.{some} {SOURCE}.",
    )
    axes = figure.subplots()
    bare(axes)
    drawn = axes.imshow(canvas, LIKENESS, vmin=-1, vmax=1, interpolation="nearest")
    axes.set_xlabel("column of the patch", fontsize=10)
    axes.set_ylabel("row of the patch", fontsize=10)
    scale(figure, drawn, [axes], "cosine similarity")
    return Drawn(figure, {"similarity": likeness}, {"source": SOURCE, "positions": model.config.positions})


def similarity(model: ViT, grid: Grid) -> Float64[np.ndarray, "N N"]:
    """Cosines between the rows of the position table for a grid, patches only.

    Raises:
        UsageError: the model adds no table.
    """
    if model.positions.table is None:
        other = "rotation tells its places: see the figure rotary-kernel" if model.config.rotary != "none" else ""
        other = other or "it knows offsets only" * bool(model.config.relative) or "it knows no places"
        raise UsageError(f"This model adds no position table; {other}.")
    table = model.positions.for_grid(grid)[model.positions.first :].detach().double().cpu().numpy()
    return np.asarray(cosines(table), np.float64)
