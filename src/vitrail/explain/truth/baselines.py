"""Maps of whoever knows nothing of the model: noise, the middle, and the picture's edges. A method must beat them.

Source: Adebayo et al. 2018, "Sanity checks for saliency maps", section 5, for edges; the middle as in Judd, Durand and
Torralba 2012.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int
from torch import Tensor

from ...model.tokens import pad_to_patches
from ...model.vit import ViT
from ...randomness import uniform
from ..reading import grid_of
from .maps import Method

BASELINES = ("random", "centre", "edges")


def baselines(seed: int = 0) -> dict[str, Method]:
    """The three as methods, by name.

    `random`: a number for each patch, drawn by the seed and the picture's row. `centre`: a Gaussian around the middle,
    its standard deviation a quarter of each side. `edges`: the mean strength of the picture's edges in a patch.
    """

    def noise(
        model: ViT, images: Float[Tensor, "B C H W"], classes: Int[Tensor, " B"]
    ) -> Float64[np.ndarray, "B rows columns"]:
        grid = grid_of(model, images)
        return uniform(seed, "random maps", 0, np.arange(len(images)), grid.patches).reshape(-1, *grid)

    return {"random": noise, "centre": centre, "edges": edges}


def centre(
    model: ViT, images: Float[Tensor, "B C H W"], classes: Int[Tensor, " B"]
) -> Float64[np.ndarray, "B rows columns"]:
    """A Gaussian around the middle of the picture, its standard deviation a quarter of each side."""
    grid = grid_of(model, images)
    down, across = (np.exp(-0.5 * (((np.arange(side) + 0.5) / side - 0.5) / 0.25) ** 2) for side in grid)
    return np.broadcast_to(down[:, None] * across, (len(images), *grid)).copy()


def edges(model: ViT, images: Float[Tensor, "B C H W"], classes: Int[Tensor, " B"]) -> Float[Tensor, "B rows columns"]:
    """How steep the picture is in each patch: the mean over its pixels of the length of Sobel's gradient.

    Channels are averaged first.
    """
    whole = pad_to_patches(images, model.config.patch) if model.config.pad else images
    grey = F.pad(whole.mean(dim=1, keepdim=True), (1, 1, 1, 1), mode="replicate")  # [B, 1, H + 2, W + 2]
    slope, smooth = torch.tensor([-1.0, 0.0, 1.0]).to(grey), torch.tensor([1.0, 2.0, 1.0]).to(grey)
    kernels = torch.stack([smooth[:, None] * slope, slope[:, None] * smooth])[:, None]  # [2, 1, 3, 3]
    steep = F.conv2d(grey, kernels).norm(dim=1, keepdim=True)  # [B, 1, H, W]
    return F.avg_pool2d(steep, model.config.patch)[:, 0]
