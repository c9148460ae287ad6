"""From tokens to a map: which tokens the answer is read from, and where the patches lie."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from ..model.vit import ViT
from ..spec import Grid


def shares(model: ViT, read: Float[Tensor, "B T P"]) -> Float[Tensor, "B T"]:
    """How much of each token goes into the answer; rows sum to 1.

    The class token, or the class and the distillation token by half, or the mean of the patches, or class token and
    mean by half, or what a learned probe looks at (the mean over its heads).

    Args:
        read: what the pooling reads.
    """
    B, T, _ = read.shape
    kind, prefix = model.pool.kind, model.config.prefix
    if kind == "attention":
        return model.pool.opened(read)[1].mean(1)[:, 0].detach()
    found = torch.zeros(B, T, device=read.device, dtype=read.dtype)
    if kind == "class":
        found[:, 0] = 1
    elif kind == "class+distillation":
        found[:, :2] = 0.5
    else:
        found[:, prefix:] = 1 / (T - prefix)
    if kind == "class+mean":
        found /= 2
        found[:, 0] = 0.5
    return found


def grid_of(model: ViT, images: Float[Tensor, "B C H W"]) -> Grid:
    """Rows and columns of patches in these pictures, those that reach into the padding too."""
    height, width = images.shape[-2:]
    patch = model.config.patch
    return Grid(math.ceil(height / patch[0]), math.ceil(width / patch[1]))


def laid_out(tokens: Float[Tensor, "*lots T"], model: ViT, grid: Grid) -> Float[Tensor, "*lots rows columns"]:
    """One number per token as the grid of patches; the tokens before them are left out."""
    return tokens[..., model.config.prefix :].unflatten(-1, tuple(grid))


def by_patch(pixels: Float[Tensor, "B H W"], patch: tuple[int, int], grid: Grid) -> Float[Tensor, "B rows columns"]:
    """The sum over each patch; pixels beyond the picture count 0."""
    height, width = pixels.shape[-2:]
    down, right = grid.rows * patch[0] - height, grid.columns * patch[1] - width
    whole = torch.nn.functional.pad(pixels, (0, right, 0, down))
    return whole.unflatten(1, (grid.rows, patch[0])).unflatten(3, (grid.columns, patch[1])).sum((2, 4))
