"""Outputs of patches as a class for every pixel: bilinear between the centres of patches, then the largest."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from .config import ViTConfig


def to_class_maps(logits: Float[Tensor, "B N M"], config: ViTConfig) -> UInt8[Tensor, "B H W"]:
    """The class of every pixel of images of the model's size, from the outputs of a dense model.

    Logits are interpolated, not probabilities, so that the border between two classes lies where both are as likely.
    """
    return spread_logits(logits, config).argmax(1).to(torch.uint8)


def to_confidences(outputs: Float[Tensor, "B K H W"]) -> UInt8[Tensor, "B H W"]:
    """The probability of the likeliest class of every pixel, in 255ths.

    Args:
        outputs: of `spread_logits`.
    """
    likeliest = outputs.amax(1, keepdim=True)
    return (255 / (outputs - likeliest).exp().sum(1)).round().to(torch.uint8)


def spread_logits(logits: Float[Tensor, "B N M"], config: ViTConfig) -> Float[Tensor, "B K H W"]:
    """The outputs of patches at every pixel of the model's size, and those of their parts (`upsample`) added."""
    K, s, grid, (height, width) = config.outputs, config.upsample, config.input_grid, config.input_size
    maps = logits.transpose(1, 2).unflatten(-1, tuple(grid))  # [B, M, rows, columns]
    size = grid.rows * config.patch[0], grid.columns * config.patch[1]  # larger than the image where that is padded
    spread = F.interpolate(maps[:, :K], size=size, mode="bilinear", align_corners=False)
    if s > 1:
        parts = F.pixel_shuffle(maps[:, K:], s)  # [B, K, s * rows, s * columns]
        spread = spread + F.interpolate(parts, size=size, mode="bilinear", align_corners=False)
    return spread[..., :height, :width]
