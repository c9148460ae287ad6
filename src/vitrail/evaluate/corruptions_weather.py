"""ImageNet-C weather corruptions: snow, frost, fog and brightness, with generated layers instead of photographs.

Source of all tables of levels: Hendrycks and Dietterich 2019, and its published scripts. Lengths are for sides of 224
pixels.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float64

from .corruption_filters import (
    Corruption,
    CorruptionRandom,
    ImageValues,
    convolve,
    gaussian_blur,
    motion_kernel,
    relative_scale,
)

SNOW_LEVELS = (
    (0.10, 0.3, 3.0, 0.50, 10, 4, 0.80),
    (0.20, 0.3, 2.0, 0.50, 12, 4, 0.70),
    (0.55, 0.3, 4.0, 0.90, 12, 8, 0.70),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
)
"""Mean, deviation, size and threshold of flakes, half length and deviation of their streaks, weight of the image."""
FROST_LEVELS = ((1.0, 0.40), (0.8, 0.60), (0.7, 0.70), (0.65, 0.70), (0.60, 0.75))
"""Weight of the image, and of the ice."""
FOG_LEVELS = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))
"""Thickness, and fading of the octaves; the paper's script squares the latter."""
BRIGHTNESS_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Added to the largest channel of every pixel."""
SNOW_ZOOM = 0.75
"""Factor of the deviation of flakes. The paper's script zooms between single points, which leaves 0.7 in the mean; with
0.7 the second severity would be as strong as the third."""
FROST_TINT = np.array([0.88, 0.95, 1.0])
"""Colour of ice, in images of three channels."""
LUMA_WEIGHTS = np.array([0.299, 0.587, 0.114])
FLAKE_GRAIN = 3.0
"""Width of a grain, in deviations of the Gaussian that smooths it."""
ICE_CRYSTALS = 12
"""Number of ice crystals."""
ICE_NEEDLES = 48
"""Needles around each crystal."""
ICE_RINGS = 12
"""Rings from a crystal to the far end of the image, across which a needle changes."""


def snow(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """A whitened image under two layers of flakes, one of them the other rotated by 180 degrees."""
    mean, deviation, size, least, reach, trail, kept = SNOW_LEVELS[severity - 1]
    scale, angle = relative_scale(values), draws.uniform_between(math.pi / 4, 3 * math.pi / 4, "angle")
    layer = make_flakes(values.shape[1], values.shape[2], mean, SNOW_ZOOM * deviation, size * scale, least, draws)
    layer = convolve(layer[None], motion_kernel(2 * reach * scale, trail * scale, angle))[0]  # flakes become streaks
    weights = LUMA_WEIGHTS if len(values) == 3 else np.full(len(values), 1 / len(values))
    whitened = np.maximum(values, 1.5 * np.tensordot(weights, values, 1)[None] + 0.5)
    return kept * values + (1 - kept) * whitened + layer + np.rot90(layer, 2)


def frost(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """A layer of ice over the image."""
    kept, thick = FROST_LEVELS[severity - 1]
    grown = make_ice(values.shape[1], values.shape[2], draws)[None]
    return kept * values + thick * (grown * FROST_TINT[:, None, None] if len(values) == 3 else grown)


def fog(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """A layer of fractal clouds; the maximum brightness stays."""
    thick, fading = FOG_LEVELS[severity - 1]
    brightest = float(values.max())
    drifting = plasma_fractal(values.shape[1], values.shape[2], fading**2, draws)
    return (values + thick * drifting) * brightest / (brightest + thick)


def brightness(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Higher V of HSV for any number of channels; hue and saturation stay, and black becomes grey."""
    brightest = values.max(0, keepdims=True)  # [1, H, W]
    lit = np.minimum(brightest + BRIGHTNESS_LEVELS[severity - 1], 1)
    return np.where(brightest > 0, values * lit / np.where(brightest > 0, brightest, 1), lit)


WEATHER_CORRUPTIONS: dict[str, Corruption] = {"snow": snow, "frost": frost, "fog": fog, "brightness": brightness}


# -- Layers that are laid over an image


def plasma_fractal(
    height: int, width: int, fading: float, draws: CorruptionRandom, purpose: str = "clouds"
) -> Float64[np.ndarray, "h w"]:
    """Fractal noise: a sum of octaves of smooth random fields, scaled to 0..1.

    Args:
        fading: each octave is this factor weaker than the one before.
    """
    total = np.zeros((height, width))
    for octave in range(1, max(1, math.ceil(math.log2(max(height, width)))) + 1):
        points = 2**octave + 1
        noise = draws.uniform(f"{purpose} {octave}", points, points)
        total += fading**-octave * upsample_smoothly(noise, height, width)
    total -= total.min()
    return total / (float(total.max()) or 1.0)


def make_ice(height: int, width: int, draws: CorruptionRandom) -> Float64[np.ndarray, "h w"]:
    """Ice layer: needles around random crystals, with a density that varies over the image; 0..1."""
    from scipy.ndimage import map_coordinates

    side = min(height, width)
    bends = [plasma_fractal(height, width, 2.0, draws, f"bend {axis}") - 0.5 for axis in range(2)]
    rows = (np.arange(height)[:, None] + 0.5) / side + 0.3 * bends[0]
    columns = (np.arange(width) + 0.5) / side + 0.3 * bends[1]
    places = draws.uniform("crystals", ICE_CRYSTALS, 2) * [height / side, width / side]
    down, right = (axis - places[:, k, None, None] for k, axis in enumerate((rows, columns)))  # 2 x [CRYSTALS, h, w]
    apart = np.hypot(down, right)
    nearest = apart.argmin(0)[None]
    angles = np.arctan2(*(np.take_along_axis(axis, nearest, 0)[0] for axis in (down, right)))
    radii = np.take_along_axis(apart, nearest, 0)[0]
    table = draws.uniform("needles", 1, ICE_CRYSTALS * ICE_RINGS, ICE_NEEDLES)
    table = np.concatenate([table, table[..., :1]], axis=2)  # once around
    across = (angles / (2 * np.pi) + 0.5) * ICE_NEEDLES
    along = nearest[0] * ICE_RINGS + (radii * ICE_RINGS).clip(0, ICE_RINGS - 1)
    needles = map_coordinates(table[0], [along, across], order=1, mode="nearest")
    ridges = 1 - np.abs(2 * needles - 1)
    cover = ((plasma_fractal(height, width, 1.6, draws, "cover") - 0.25) / 0.5).clip(0, 1)
    return cover * (0.35 + 0.65 * np.square(ridges))


def make_flakes(
    height: int, width: int, mean: float, deviation: float, size: float, threshold: float, draws: CorruptionRandom
) -> Float64[np.ndarray, "h w"]:
    """Flakes: smoothed noise with grains of about `size` pixels, set to 0 below `threshold`; 0..1.

    The smoothed noise is scaled to a fixed deviation, so that the density is the same for any image size.
    """
    grains = gaussian_blur(draws.normal("flakes", height, width), size / FLAKE_GRAIN)
    layer = mean + deviation * grains / (float(grains.std()) or 1.0)
    return np.where(layer < threshold, 0.0, layer).clip(0, 1)


def upsample_smoothly(grid: Float64[np.ndarray, "g k"], height: int, width: int) -> Float64[np.ndarray, "h w"]:
    """Smoothstep interpolation of a grid to the size of an image."""
    return _upsample_axis(_upsample_axis(grid, height).T, width).T


def _upsample_axis(grid: Float64[np.ndarray, "g k"], length: int) -> Float64[np.ndarray, "l k"]:
    places = (np.arange(length) + 0.5) / length * (len(grid) - 1)
    low = np.minimum(places.astype(np.int64), len(grid) - 2)
    part = (places - low)[:, None]
    part = part * part * (3 - 2 * part)
    return grid[low] * (1 - part) + grid[low + 1] * part
