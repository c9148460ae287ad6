"""Corruptions of image acquisition: exposure, sensor noise, lens blur, position, storage, and burnt-in markers.

The levels are ours: from hardly visible to an image that a reader would reject. Lengths are fractions of the shorter
side, or pixels for sides of 224.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Bool

from .corruption_filters import (
    Corruption,
    CorruptionRandom,
    ImageValues,
    gaussian_blur,
    image_center,
    jpeg_round_trip,
    pixel_grid,
    relative_scale,
    sample_bilinear,
)

EXPOSURE_LEVELS = (0.25, 0.5, 0.75, 1.0, 1.5)
"""Exposure stops: powers of 2."""
GAMMA_LEVELS = (1.15, 1.3, 1.5, 1.8, 2.2)
"""Exponents, or their inverses."""
SENSOR_NOISE_LEVELS = ((0.005, 2000), (0.01, 800), (0.015, 300), (0.025, 120), (0.04, 50))
"""Deviation of the dark noise, and photon count of a white value."""
LENS_BLUR_LEVELS = (0.5, 1.0, 1.5, 2.5, 4.0)
"""Deviation of a Gaussian, in pixels for sides of 224."""
ROTATION_LEVELS = (2.0, 4.0, 6.0, 8.0, 10.0)
"""Degrees."""
SHIFT_LEVELS = (0.02, 0.04, 0.06, 0.09, 0.12)
"""Fractions of the shorter side."""
STORED_JPEG_QUALITIES = (80, 60, 40, 25, 12)
"""JPEG quality factors."""
BIT_DEPTH_LEVELS = (6, 5, 4, 3, 2)
"""Bits left of eight."""
MARKER_LEVELS = ((1, 0.07), (2, 0.09), (4, 0.11), (6, 0.13), (8, 0.15))
"""Number of letters, and their height as a fraction of the shorter side, at least five pixels."""
DEAD_PIXEL_LEVELS = ((0.001, 0), (0.003, 0), (0.01, 1), (0.02, 2), (0.04, 3))
"""Fraction of single pixels, and number of columns."""


def underexposure(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Values divided by a power of 2."""
    return values * 2 ** -EXPOSURE_LEVELS[severity - 1]


def overexposure(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Values multiplied by a power of 2 and clipped at white."""
    return np.minimum(values * 2 ** EXPOSURE_LEVELS[severity - 1], 1)


def gamma(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Gamma curve: darker mid-tones in half of the images, lighter ones in the others."""
    return values ** (GAMMA_LEVELS[severity - 1] ** draws.random_sign("direction"))


def sensor_noise(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Dark noise of constant deviation plus photon noise that grows with brightness."""
    dark, photons = SENSOR_NOISE_LEVELS[severity - 1]
    return values + np.sqrt(dark**2 + values / photons) * draws.normal("noise", *values.shape)


def lens_blur(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Gaussian blur."""
    return gaussian_blur(values, LENS_BLUR_LEVELS[severity - 1] * relative_scale(values))


def rotation(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Rotation about the centre, in a random direction, with the edge repeated."""
    angle = math.radians(ROTATION_LEVELS[severity - 1]) * draws.random_sign("direction")
    (rows, columns), (row, column) = pixel_grid(values), image_center(values)
    down, right = rows - row, columns - column
    turned = (math.cos(angle) * down - math.sin(angle) * right, math.sin(angle) * down + math.cos(angle) * right)
    return sample_bilinear(values, row + turned[0], column + turned[1], "nearest")


def shift(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Sub-pixel translation in a random direction, with the edge repeated."""
    reach = SHIFT_LEVELS[severity - 1] * min(values.shape[1:])
    angle = draws.uniform_between(0, 2 * math.pi, "direction")
    rows, columns = pixel_grid(values)
    return sample_bilinear(values, rows + reach * math.sin(angle), columns + reach * math.cos(angle), "nearest")


def archive_jpeg(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """JPEG compression at the qualities of archives and below."""
    return jpeg_round_trip(values, STORED_JPEG_QUALITIES[severity - 1])


def bit_depth(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Quantization to fewer grey levels, equally spaced from black to white."""
    most = 2 ** BIT_DEPTH_LEVELS[severity - 1] - 1
    return np.floor(np.rint(255 * values) * (most + 1) / 256) / most


def marker(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Side marker (L or R) and digits in one of the corners, white on a dark background and black on a light one."""
    count, share = MARKER_LEVELS[severity - 1]
    H, W = values.shape[1:]
    first = "LR"[int(2 * draws.uniform("side", 1)[0])]
    digits = "".join(str(int(10 * number)) for number in draws.uniform("number", count - 1))
    ink = render_text(first + digits, max(GLYPH_ROWS, round(share * min(H, W))))[:H, :W]
    edge = min(H, W) // 28
    top, left = min(edge, H - ink.shape[0]), min(edge, W - ink.shape[1])
    if draws.random_sign("top or bottom") < 0:
        top = H - ink.shape[0] - top
    if draws.random_sign("left or right") < 0:
        left = W - ink.shape[1] - left
    marked = values.copy()
    below = marked[:, top : top + ink.shape[0], left : left + ink.shape[1]]
    below[:, ink] = float(below.mean() < 0.5)
    return marked


def dead_pixels(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Single pixels, and at higher severities whole columns, that are black or white."""
    share, lines = DEAD_PIXEL_LEVELS[severity - 1]
    drawn = draws.uniform("pixels", *values.shape[1:])
    result = np.where(drawn < share / 2, 0.0, np.where(drawn < share, 1.0, values))
    for place, bright in draws.uniform("columns", lines, 2):
        result[:, :, int(place * values.shape[2])] = float(bright < 0.5)
    return result


ACQUISITION_CORRUPTIONS: dict[str, Corruption] = {
    "underexposure": underexposure,
    "overexposure": overexposure,
    "gamma": gamma,
    "sensor_noise": sensor_noise,
    "lens_blur": lens_blur,
    "rotation": rotation,
    "shift": shift,
    "stored_as_jpeg": archive_jpeg,
    "bit_depth": bit_depth,
    "marker": marker,
    "dead_pixels": dead_pixels,
}


# -- Bitmap font of 3 x 5 dots

GLYPH_ROWS, GLYPH_COLUMNS = 5, 3

# fmt: off
GLYPHS = {
    "0": "### #.# #.# #.# ###",
    "1": ".#. ##. .#. .#. ###",
    "2": "### ..# ### #.. ###",
    "3": "### ..# ### ..# ###",
    "4": "#.# #.# ### ..# ..#",
    "5": "### #.. ### ..# ###",
    "6": "### #.. ### #.# ###",
    "7": "### ..# ..# .#. .#.",
    "8": "### #.# ### #.# ###",
    "9": "### #.# ### ..# ###",
    "L": "#.. #.. #.. #.. ###",
    "R": "##. #.# ##. #.# #.#",
}
# fmt: on


def render_text(text: str, height: int) -> Bool[np.ndarray, "h w"]:
    """Mask of the pixels of a line of text; letters are one dot apart.

    Args:
        height: in pixels, at least five; a dot is a fifth of it, to the nearest pixel.
    """
    lines = [np.array([[dot == "#" for dot in row] for row in GLYPHS[one].split()]) for one in text]
    gap = np.zeros((GLYPH_ROWS, 1), bool)
    dots = np.concatenate([part for one in lines for part in (one, gap)][:-1], axis=1)
    width = max(1, round(height * dots.shape[1] / GLYPH_ROWS))
    rows = np.arange(height) * GLYPH_ROWS // height
    columns = np.arange(width) * dots.shape[1] // width
    return dots[rows][:, columns]
