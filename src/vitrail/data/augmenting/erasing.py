"""Random erasing: a rectangle of some pictures is covered, so that no single part of an object is all there is to it.

Source: Zhong et al. 2020, "Random Erasing Data Augmentation".
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from ..regions import DRAWS, anywhere, first_fitting
from .onto import onto

ERASING_DRAWS = DRAWS + 2
"""Numbers that a picture takes: those of its rectangle, whether it is erased, and its noise."""
AREAS = (0.02, 0.33)
RATIOS = (1 / 3.3, 1 / 0.3)  # width over height; torchvision counts height over width, 0.3 to 3.3
Fill = Literal["noise", "zero", "mean"]


def erase(
    images: UInt8[Tensor, "B C H W"], keys: Float64[np.ndarray, "B draws"], probability: float, fill: Fill = "noise"
) -> UInt8[Tensor, "B C H W"]:
    """Cover a rectangle of 2 to 33 % of the area in each picture with this probability.

    Ten tries for a rectangle smaller than the picture, as torchvision's RandomErasing; a picture too small for any
    stays whole.

    Args:
        keys: in [0, 1), ERASING_DRAWS for each picture.
        fill: noise, each value 0..255 as likely; zero, black; mean, each picture's own mean per channel, rounded.
    """
    B, _, H, W = images.shape
    size = np.broadcast_to(np.array([H, W]), (B, 2))
    sides, found = first_fitting(keys, size, size - 1, AREAS, RATIOS)
    rows = np.flatnonzero(found & (keys[:, DRAWS] < probability))
    if len(rows) == 0:
        return images
    boxes = np.concatenate([anywhere(keys, size - sides), sides], axis=1)[rows]
    place = onto(rows, images.device)
    chosen = images[place]
    covered = torch.where(inside(boxes, H, W, images.device), _filling(chosen, keys[rows, DRAWS + 1], fill), chosen)
    return images.index_copy(0, place, covered)


def inside(boxes: Int64[np.ndarray, "n 4"], height: int, width: int, device: torch.device) -> Tensor:
    """bool [n, 1, height, width]: the pixels of each picture's box (top, left, height, width)."""
    tops, lefts, heights, widths = onto(boxes, device)[..., None].unbind(1)  # 4 x [n, 1]
    rows, columns = torch.arange(height, device=device), torch.arange(width, device=device)
    within_rows = (rows >= tops) & (rows < tops + heights)  # [n, height]
    within_columns = (columns >= lefts) & (columns < lefts + widths)  # [n, width]
    return within_rows[:, None, :, None] & within_columns[:, None, None, :]


def _filling(images: UInt8[Tensor, "n C H W"], keys: Float64[np.ndarray, " n"], fill: Fill) -> Tensor:
    if fill == "zero":
        return torch.zeros_like(images[:1])
    if fill == "mean":
        pixels = images[0, 0].numel()
        total = images.sum(dim=(2, 3), keepdim=True, dtype=torch.int64)
        return (total + pixels // 2).div(pixels, rounding_mode="floor").to(torch.uint8)
    return _noise(onto((keys * 2.0**32).astype(np.int64), images.device), images[0].shape)


def _noise(starts: Int64[Tensor, " n"], shape: torch.Size) -> UInt8[Tensor, "n C H W"]:
    """A byte for every pixel out of its picture's start and its place; the same on every device.

    Source: the 32-bit mixing function "lowbias32" of C. Wellons, in 64-bit whole numbers cut to 32 bits.
    """
    pixels = torch.arange(shape.numel(), device=starts.device).view(1, *shape)
    bits = starts[:, None, None, None] + pixels * 0x9E3779B9 & _BITS
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D & _BITS
    bits = (bits ^ (bits >> 15)) * 0x846CA68B & _BITS
    return ((bits ^ (bits >> 16)) >> 24).to(torch.uint8)


_BITS = 0xFFFFFFFF
