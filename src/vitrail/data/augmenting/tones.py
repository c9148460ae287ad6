"""Other grey levels for the same ones: every change that sees no neighbours is a table of 256 entries per channel.

Tables are made of whole numbers or of single float32 products and sums, whose bits are the same in any batch.
Values are cut off, not rounded, where a formula leaves a fraction, as Pillow and torchvision do.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from torch import Tensor

from .onto import onto


def brightness(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Levels times `amounts`."""
    return _looked_up(images, _cut_off(_levels(images) * _each(amounts, images)))


def contrast(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Levels away from the picture's mean grey (0), as they are (1), twice as far from it (2).

    The mean is that of the grey picture; with any number of channels but three, that of all values.
    """
    values = grey_levels(images) if images.shape[1] == 3 else images
    total = values.sum(dim=(1, 2, 3), dtype=torch.int64)  # whole, so that the order of summation does not matter
    mean = (total.float() / values[0].numel())[:, None, None]
    amount = _each(amounts, images)
    return _looked_up(images, _cut_off(_levels(images) * amount + mean * (1 - amount)))


def posterise(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """The first `amounts` bits (0..8) of every level; the others become 0."""
    masks = 256 - 2 ** (8 - amounts.astype(np.int64))
    return images & onto(masks.astype(np.uint8), images.device)[:, None, None, None]


def solarise(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Levels of at least `amounts` are inverted."""
    levels = _levels(images)
    inverted = torch.where(levels >= _each(amounts, images), 255 - levels, levels)
    return _looked_up(images, inverted.to(torch.uint8))


def invert(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """255 minus every level; there is no amount of it."""
    return ~images


def auto_contrast(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Each channel stretched so that its darkest pixel is 0 and its brightest 255; a flat channel stays."""
    flat = images.flatten(2)
    low, high = flat.amin(2, keepdim=True).int(), flat.amax(2, keepdim=True).int()  # [n, C, 1]
    levels = torch.arange(256, device=images.device)
    stretched = ((levels - low) * 255).div((high - low).clamp(min=1), rounding_mode="floor").clamp(0, 255)
    return _looked_up(images, torch.where(high > low, stretched, levels).to(torch.uint8))


def equalise(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Each channel's levels spread so that all are about as frequent, by Pillow's whole-number formula."""
    flat = images.flatten(2).long()  # [n, C, H * W]
    counts = torch.zeros(*flat.shape[:2], 256, dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, flat, torch.ones_like(flat[:1, :1, :1]).expand_as(flat))
    below = counts.cumsum(2) - counts  # pixels that are darker
    brightest = counts.gather(2, flat.amax(2, keepdim=True))
    step = (flat.shape[2] - brightest).div(255, rounding_mode="floor")  # [n, C, 1]
    spread = (below + step // 2).div(step.clamp(min=1), rounding_mode="floor").clamp(max=255)
    table = torch.where(step > 0, spread, torch.arange(256, device=images.device))
    return _looked_up(images, table.to(torch.uint8))


def grey_levels(images: UInt8[Tensor, "n 3 H W"]) -> UInt8[Tensor, "n 1 H W"]:
    """0.299 red + 0.587 green + 0.114 blue in 65536ths, rounded: Pillow's grey, in whole numbers."""
    red, green, blue = images.to(torch.int32).unbind(1)
    weighted = red * 19595 + green * 38470 + blue * 7471 + 0x8000
    return (weighted >> 16).to(torch.uint8)[:, None]


def _levels(images: Tensor) -> Tensor:
    return torch.arange(256, device=images.device, dtype=torch.float32)


def _each(amounts: np.ndarray, images: Tensor) -> Tensor:
    return onto(amounts, images.device)[:, None, None]


def _cut_off(values: Tensor) -> Tensor:
    return values.clamp_(0, 255).to(torch.uint8)


def _looked_up(images: UInt8[Tensor, "n C H W"], tables: UInt8[Tensor, "n c 256"]) -> UInt8[Tensor, "n C H W"]:
    """Every level by its picture's table; one table serves all channels, or each has its own."""
    n, C, H, W = images.shape
    tables = tables.expand(n, C, 256)
    return tables.gather(2, images.reshape(n, C, H * W).long()).view(n, C, H, W)
