"""Changes that look at a pixel's other channels or at its neighbours: saturation, grey, sharpness, blur."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from torch import Tensor

from .onto import onto
from .separable import blurred
from .tones import grey_levels

BLUR_RADIUS = 6
"""Pixels that a blur reaches to each side: three deviations of the strongest, 2."""


def saturation(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Grey (0), as it is (1), twice as far from grey (2). Any number of channels but three has no colour and stays."""
    if images.shape[1] != 3:
        return images
    amount = onto(amounts, images.device)[:, None, None, None]
    blended = images.float().mul_(amount).add_(grey_levels(images) * (1 - amount))
    return blended.clamp_(0, 255).to(torch.uint8)


def grey(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """The grey picture in all three channels; any other number of channels stays. There is no amount of it."""
    return grey_levels(images).expand_as(images) if images.shape[1] == 3 else images


def sharpness(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """Softened (0), as it is (1), twice as far from soft (2); the outermost pixels stay.

    Soft is the mean of a pixel's 3 x 3 neighbourhood in which it counts five times itself, as in Pillow.
    """
    if min(images.shape[-2:]) < 3:
        return images
    whole = images.to(torch.int16)
    rows = whole[..., :-2] + whole[..., 1:-1] + whole[..., 2:]
    around = rows[..., :-2, :] + rows[..., 1:-1, :] + rows[..., 2:, :]  # at most 9 * 255
    inner = whole[..., 1:-1, 1:-1]
    soft = ((around + 4 * inner).float() / 13).round_()  # a whole number over 13 is never a half
    amount = onto(amounts, images.device)[:, None, None, None]
    changed = inner.float().add_((soft - inner) * (1 - amount)).clamp_(0, 255).to(torch.uint8)
    kept = images.clone()
    kept[..., 1:-1, 1:-1] = changed
    return kept


def blur(images: UInt8[Tensor, "n C H W"], amounts: Float64[np.ndarray, " n"]) -> UInt8[Tensor, "n C H W"]:
    """A Gaussian blur of `amounts` pixels' deviation, above 0 and up to 2; the picture is mirrored at its edge."""
    return blurred(images, amounts, BLUR_RADIUS)
