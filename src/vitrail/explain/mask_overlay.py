"""Masks as colours: the palette of classes, and a picture under its mask."""

from __future__ import annotations

import colorsys

import numpy as np
from jaxtyping import UInt8

from ..data.source import UNKNOWN_PIXEL
from .overlay import to_rgb

MASK_OPACITY = 0.5
_GOLDEN_RATIO = 0.6180339887498949


def mask_palette(count: int) -> UInt8[np.ndarray, "256 3"]:
    """The colour of each class index: the first is black, as backgrounds are, the others go round the circle of hues
    by the golden ratio, so that the first few differ most; unknown is white.
    """
    colors = np.zeros((256, 3), np.uint8)
    for k in range(1, count):
        hue, level = (k - 1) * _GOLDEN_RATIO % 1, 1.0 if k % 2 else 0.75
        colors[k] = [round(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.85, level)]
    colors[UNKNOWN_PIXEL] = 255
    return colors


def blend_mask(
    image: UInt8[np.ndarray, "H W C"], classes: UInt8[np.ndarray, "H W"], count: int
) -> UInt8[np.ndarray, "H W 3"]:
    """The picture under the colours of its classes; the first class and unknown pixels stay as they are."""
    rgb = to_rgb(image)
    is_colored = ((classes != 0) & (classes != UNKNOWN_PIXEL))[..., None]
    mixed = (1 - MASK_OPACITY) * rgb + MASK_OPACITY * mask_palette(count)[classes]
    return np.where(is_colored, mixed.round(), rgb).astype(np.uint8)
