"""Blur: out of focus, behind rough glass, moved sideways, moved towards the camera.

Lengths are written for sides of 224 pixels and grow and shrink with the shorter side of the picture; below half a
pixel little of them is left. Source of all tables: Hendrycks and Dietterich 2019, and its published scripts.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float64

from .drawn import Corruption, Draws, Values
from .moving import grid_of, taken_from
from .smearing import disc, filtered, scale_of, smoothed, streak

DEFOCUS = (3, 4, 6, 8, 10)
"""Radii of the disc that a point becomes; its rim is soft by a pixel."""
GLASS = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))
"""Deviation of the smoothing before and after, how many pixels light wanders, and how often."""
MOTION = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))
"""Half the length of the streak, and the deviation of its Gaussian."""
ZOOM = ((1.10, 11), (1.15, 16), (1.20, 11), (1.24, 13), (1.30, 11))
"""The largest enlargement, and how many there are from 1 to it."""


def defocus_blur(values: Values, severity: int, draws: Draws) -> Values:
    """Every point becomes a disc."""
    return filtered(values, disc(DEFOCUS[severity - 1] * scale_of(values)))


def glass_blur(values: Values, severity: int, draws: Draws) -> Values:
    """Light wanders to its neighbours, a random way for every pixel; the paper's script exchanges whole pixels."""
    deviation, reach, rounds = GLASS[severity - 1]
    scale = scale_of(values)
    ways = (2 * draws.uniform("ways", rounds, 2, *values.shape[1:]) - 1).sum(0)  # [2, H, W]
    down, right = (reach + 0.5) * scale * ways
    rows, columns = grid_of(values)
    rough = taken_from(smoothed(values, deviation * scale), rows + down, columns + right, "reflect")
    return smoothed(rough, deviation * scale)


def motion_blur(values: Values, severity: int, draws: Draws) -> Values:
    """Every point becomes a streak that fades, up to 45 degrees from the horizontal."""
    reach, deviation = MOTION[severity - 1]
    scale, angle = scale_of(values), draws.between(-math.pi / 4, math.pi / 4, "angle")
    return filtered(values, streak(2 * reach * scale, deviation * scale, angle))


def zoom_blur(values: Values, severity: int, draws: Draws) -> Values:
    """The mean of the picture and its enlargements about its middle."""
    most, count = ZOOM[severity - 1]
    seen = values.copy()
    for factor in np.linspace(1, most, count):
        rows, columns = (_enlarging(side, float(factor)) for side in values.shape[1:])
        seen += rows @ values @ columns.T
    return seen / (count + 1)


KINDS: dict[str, Corruption] = {
    "defocus_blur": defocus_blur,
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "zoom_blur": zoom_blur,
}


def _enlarging(side: int, factor: float) -> Float64[np.ndarray, "s s"]:
    """The matrix that enlarges one axis about its middle and keeps its length; bilinear."""
    places = (side - 1) / 2 + (np.arange(side) - (side - 1) / 2) / factor
    low = np.floor(places).astype(np.int64)
    matrix = np.zeros((side, side))
    matrix[np.arange(side), low] = 1 - (places - low)
    matrix[np.arange(side), np.minimum(low + 1, side - 1)] += places - low
    return matrix
