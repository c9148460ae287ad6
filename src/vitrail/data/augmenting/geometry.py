"""Sheared, moved and turned pictures: for every pixel of the result, the place in the picture that it is taken from.

Places between pixels are bilinear, places outside the picture are black unless said otherwise, results are rounded to
grey levels. A picture's result is the same bits in any batch: places are worked out number by number, never by matrix
products.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float64, UInt8
from torch import Tensor

from .onto import onto
from .picking import along, picked_or_black


def shear_x(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Rows slide to the left by `amounts` pixels a row, more and more downwards; the top edge stays."""
    H = images.shape[-2]
    one, zero = np.ones_like(amounts), np.zeros_like(amounts)
    return sampled(images, np.stack([one, amounts, amounts * H / 2, zero, one, zero], axis=1))


def shear_y(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Columns slide upwards by `amounts` pixels a column, more and more to the right; the left edge stays."""
    W = images.shape[-1]
    one, zero = np.ones_like(amounts), np.zeros_like(amounts)
    return sampled(images, np.stack([one, zero, zero, amounts, one, amounts * W / 2], axis=1))


def translate_x(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Pictures move to the right by `amounts` pixels, of which the fraction is dropped."""
    return _moved(images, np.zeros_like(amounts), amounts)


def translate_y(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Pictures move down by `amounts` pixels, of which the fraction is dropped."""
    return _moved(images, amounts, np.zeros_like(amounts))


def rotate(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Pictures turn counter-clockwise about their middle by `amounts` degrees."""
    cosines, sines = np.cos(np.radians(amounts)), np.sin(np.radians(amounts))
    zero = np.zeros_like(amounts)
    return sampled(images, np.stack([cosines, -sines, zero, sines, cosines, zero], axis=1))


def _moved(
    images: UInt8[Tensor, "n C H W"], down: Float64[np.ndarray, " n"], right: Float64[np.ndarray, " n"]
) -> UInt8[Tensor, "n C H W"]:
    H, W = images.shape[-2:]
    shifts = onto(np.stack([down, right]).astype(np.int64)[..., None], images.device)  # [2, n, 1]
    return picked_or_black(images, along(H, images.device) - shifts[0], along(W, images.device) - shifts[1])


def sampled(
    images: UInt8[Tensor, "n C H W"], matrices: Float64[np.ndarray, "n 6"], border: Literal["zeros", "border"] = "zeros"
) -> UInt8[Tensor, "n C H W"]:
    """For the pixel at (x, y) from the middle, the picture at (a x + b y + c, d x + e y + f) from the middle.

    Args:
        matrices: a, b, c, d, e, f of each picture.
        border: what lies outside: zeros is black, border the nearest pixel.
    """
    H, W = images.shape[-2:]
    x = _from_middle(W, images.device)[None, None]  # [1, 1, W]
    y = _from_middle(H, images.device)[None, :, None]  # [1, H, 1]
    a, b, c, d, e, f = onto(matrices, images.device)[..., None, None].unbind(1)  # 6 x [n, 1, 1]
    columns = (a * x + c) + b * y  # [n, H, W]
    rows = (d * x + f) + e * y
    places = torch.stack([columns * (2 / W), rows * (2 / H)], dim=-1)  # -1..1 from outer edge to outer edge
    found = F.grid_sample(images.float(), places, mode="bilinear", padding_mode=border, align_corners=False)
    return found.round_().to(torch.uint8)


def _from_middle(length: int, device: torch.device) -> Tensor:
    return torch.arange(length, device=device) - (length - 1) / 2
