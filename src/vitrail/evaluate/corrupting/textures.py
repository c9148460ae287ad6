"""What lies before a picture, generated: clouds, ice on a window, falling flakes."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float64

from .drawn import Draws
from .smearing import filtered, smoothed, streak

GRAIN = 3.0
"""A grain is as many deviations wide as the Gaussian that smooths it."""
CRYSTALS = 12
"""From which ice grows."""
NEEDLES = 48
"""Around each of them."""
RINGS = 12
"""Between a crystal and the far end of the picture, across which a needle changes."""


def clouds(height: int, width: int, fading: float, draws: Draws, purpose: str = "clouds") -> Float64[np.ndarray, "h w"]:
    """Random hills on top of larger hills, 0 at the lowest place and 1 at the highest.

    Args:
        fading: hills of half the size are this much lower.
    """
    total = np.zeros((height, width))
    for octave in range(1, max(1, math.ceil(math.log2(max(height, width)))) + 1):
        points = 2**octave + 1
        total += fading**-octave * spread(draws.uniform(f"{purpose} {octave}", points, points), height, width)
    total -= total.min()
    return total / (float(total.max()) or 1.0)


def ice(height: int, width: int, draws: Draws) -> Float64[np.ndarray, "h w"]:
    """Needles that grow from crystals until they meet, dense in some places and thin in others; 0..1."""
    side = min(height, width)
    bends = [clouds(height, width, 2.0, draws, f"bend {axis}") - 0.5 for axis in range(2)]
    rows = (np.arange(height)[:, None] + 0.5) / side + 0.3 * bends[0]
    columns = (np.arange(width) + 0.5) / side + 0.3 * bends[1]
    places = draws.uniform("crystals", CRYSTALS, 2) * [height / side, width / side]
    down, right = (axis - places[:, k, None, None] for k, axis in enumerate((rows, columns)))  # 2 x [CRYSTALS, h, w]
    apart = np.hypot(down, right)
    nearest = apart.argmin(0)[None]
    angles = np.arctan2(*(np.take_along_axis(axis, nearest, 0)[0] for axis in (down, right)))
    radii = np.take_along_axis(apart, nearest, 0)[0]
    table = draws.uniform("needles", 1, CRYSTALS * RINGS, NEEDLES)
    table = np.concatenate([table, table[..., :1]], axis=2)  # once around
    across = (angles / (2 * np.pi) + 0.5) * NEEDLES
    along = nearest[0] * RINGS + (radii * RINGS).clip(0, RINGS - 1)
    ridges = 1 - np.abs(2 * _looked_up(table, along, across) - 1)
    cover = ((clouds(height, width, 1.6, draws, "cover") - 0.25) / 0.5).clip(0, 1)
    return cover * (0.35 + 0.65 * np.square(ridges))


def flakes(
    height: int, width: int, mean: float, deviation: float, size: float, least: float, draws: Draws
) -> Float64[np.ndarray, "h w"]:
    """Noise in grains of about `size` pixels, of which only what reaches `least` is seen; 0..1.

    The grains are smoothed noise of one deviation, so that equally much is seen at any size of the picture.
    """
    grains = smoothed(draws.normal("flakes", height, width), size / GRAIN)
    layer = mean + deviation * grains / (float(grains.std()) or 1.0)
    return np.where(layer < least, 0.0, layer).clip(0, 1)


def falling(
    layer: Float64[np.ndarray, "h w"], length: float, deviation: float, angle: float
) -> Float64[np.ndarray, "h w"]:
    """The same layer while it moves: every flake becomes a streak."""
    return filtered(layer[None], streak(length, deviation, angle))[0]


def spread(grid: Float64[np.ndarray, "g k"], height: int, width: int) -> Float64[np.ndarray, "h w"]:
    """A grid of values stretched over a picture, level at each of its points."""
    return _stretched(_stretched(grid, height).T, width).T


def _stretched(grid: Float64[np.ndarray, "g k"], length: int) -> Float64[np.ndarray, "l k"]:
    places = (np.arange(length) + 0.5) / length * (len(grid) - 1)
    low = np.minimum(places.astype(np.int64), len(grid) - 2)
    part = (places - low)[:, None]
    part = part * part * (3 - 2 * part)
    return grid[low] * (1 - part) + grid[low + 1] * part


def _looked_up(
    table: Float64[np.ndarray, "1 r n"], rows: Float64[np.ndarray, "h w"], columns: Float64[np.ndarray, "h w"]
) -> Float64[np.ndarray, "h w"]:
    from scipy.ndimage import map_coordinates

    return np.asarray(map_coordinates(table[0], [rows, columns], order=1, mode="nearest"))
