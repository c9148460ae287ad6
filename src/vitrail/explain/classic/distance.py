"""Figure 7 (right) of the ViT paper: how far each head of each block looks, in pixels."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ...model.vit import ViT
from ...spec import Grid
from ..truth.scores import asked
from .drawing import FIRST, SECOND, SOFT, page, plain
from .looking import blocks
from .shown import Choices, Drawn, Shown

SOURCE = "Dosovitskiy et al. 2020, figure 7 (right) and appendix D"
PAPER = 128
"""Pictures that the paper averages over."""


def attention_distance(model: ViT, shown: Shown, choices: Choices) -> Drawn:
    """One dot for each head of each block: the mean distance between a patch and what it looks at.

    Options: renormalise.
    """
    found = distances(model, shown.images, choices.renormalise)  # [L, A]
    even = float(places_apart(shown.grid, model.config.patch).mean())
    shares = (
        "shares among patches sum to 1" if choices.renormalise else "prefix tokens keep their shares, at no distance"
    )
    few = "" if len(shown.images) >= PAPER else f" The paper averages over {PAPER} pictures."
    height, width = shown.images.shape[2:]
    figure = page(
        4.2,
        "How far each head looks",
        f"Mean distance in pixels between a patch and the patches that it looks at, by their weights ({shares}); "
        f"pictures of {height} x {width} pixels, {len(shown.images)} of them.{few} The broken line is a head that "
        f"looks everywhere alike. {SOURCE}.",
    )
    axes = figure.subplots()
    plain(axes, "block, counted from 0", "mean attention distance, pixels")
    depth, heads = found.shape
    axes.axhline(even, color=SECOND, linestyle=(0, (5, 3)), linewidth=1.3)
    axes.text(depth - 0.55, even, "even", color=SECOND, fontsize=9, va="bottom", ha="right")
    axes.plot(np.arange(depth), found.mean(1), color=SOFT, linewidth=1.0, alpha=0.7)
    size = 34 if heads <= 8 else 20
    axes.scatter(np.repeat(np.arange(depth), heads), found.ravel(), size, FIRST, alpha=0.8, linewidths=0)
    axes.set(xlim=(-0.5, depth - 0.5), ylim=(0, max(even, float(found.max())) * 1.08))
    if depth <= 16:
        axes.set_xticks(range(depth))
    facts = {"source": SOURCE, "even_distance_pixels": even}
    return Drawn(figure, {"distances": found}, facts)


def distances(model: ViT, images: Float[Tensor, "B C H W"], renormalise: bool) -> Float64[np.ndarray, "depth heads"]:
    """Mean distance in pixels of every head of every block, over all looking patches and pictures.

    Class token, distillation token and registers neither look nor are looked at.

    Args:
        renormalise: the weights between patches are made to sum to 1 for each looking patch.
    """
    prefix, patch = model.config.prefix, model.config.patch
    grid = Grid(images.shape[2] // patch[0], images.shape[3] // patch[1])
    apart = torch.from_numpy(places_apart(grid, patch)).to(images)
    found = np.zeros((model.config.depth, model.config.heads))
    with asked(model):
        for image in images:
            for i, weights in enumerate(blocks(model, image[None])):
                between = weights[0, :, prefix:, prefix:]  # [A, N, N]
                between = between / between.sum(-1, keepdim=True) if renormalise else between
                found[i] += (between * apart).sum(-1).mean(-1).double().cpu().numpy()
    return found / len(images)


def places_apart(grid: Grid, patch: tuple[int, int]) -> Float64[np.ndarray, "N N"]:
    """Distance in pixels between the centres of every two patches."""
    rows, columns = np.divmod(np.arange(grid.patches), grid.columns)
    down, across = (np.subtract.outer(axis, axis) * side for axis, side in zip((rows, columns), patch, strict=True))
    return np.hypot(down, across).astype(np.float64)
