"""What happens to stored pictures: faded, bent, made coarse, compressed.

Source of all tables: Hendrycks and Dietterich 2019, and its published scripts.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from .drawn import Corruption, Draws, Values
from .moving import grid_of, middle_of, taken_from
from .smearing import scale_of, smoothed

CONTRAST = (0.4, 0.3, 0.2, 0.1, 0.05)
"""What is left of every value's distance from the mean of its channel."""
ELASTIC = ((12.2, 2.44, 4.88), (17.08, 2.44, 4.88), (29.28, 2.44, 4.88), (488.0, 170.8, 24.4), (488.0, 19.52, 48.8))
"""Strength and deviation of the bending, and how far three points are moved, in pixels of sides of 224. The five are
the paper's, from the gentlest on: its own order is 4, 5, 1, 2, 3 of these, which gets gentler in the middle."""
PIXELATE = (0.6, 0.5, 0.4, 0.3, 0.25)
"""Blocks per pixel along a side of 224 pixels."""
JPEG = (25, 18, 15, 10, 7)
"""Quality."""


def contrast(values: Values, severity: int, draws: Draws) -> Values:
    """Every channel nearer to its mean."""
    means = values.mean((1, 2), keepdims=True)
    return means + CONTRAST[severity - 1] * (values - means)


def elastic_transform(values: Values, severity: int, draws: Draws) -> Values:
    """Sheared and turned by moving three points of it, then bent like rubber; both in one resampling."""
    strength, deviation, moved = ELASTIC[severity - 1]
    scale = scale_of(values)
    rows, columns = _sheared(values, moved * scale, draws.uniform("points", 3, 2))
    down, right = _bending(draws.uniform("bending", 2, *values.shape[1:]), strength, deviation, scale)
    return taken_from(values, rows + down, columns + right, "reflect")


def pixelate(values: Values, severity: int, draws: Draws) -> Values:
    """Blocks of one value, larger than a pixel by an amount that shrinks with the picture; partial pixels count."""
    block = 1 + (1 / PIXELATE[severity - 1] - 1) * scale_of(values)
    sides = [(side, max(1, round(side / block))) for side in values.shape[1:]]
    rows, columns = (_means(*each) for each in sides)
    down, across = (((np.arange(side) + 0.5) * blocks / side).astype(np.int64) for side, blocks in sides)
    return (rows @ values @ columns.T)[:, down][:, :, across]


def jpeg_compression(values: Values, severity: int, draws: Draws) -> Values:
    """Through JPEG and back; its blocks have 8 pixels whatever the size of the picture."""
    return through_jpeg(values, JPEG[severity - 1])


KINDS: dict[str, Corruption] = {
    "contrast": contrast,
    "elastic_transform": elastic_transform,
    "pixelate": pixelate,
    "jpeg_compression": jpeg_compression,
}


def through_jpeg(values: Values, quality: int) -> Values:
    """Encoded and decoded: three channels as colours of half the resolution (4:2:0), others each as a grey picture."""
    import simplejpeg

    levels = np.rint(255 * values).astype(np.uint8)
    if len(levels) == 3:
        pixels = np.ascontiguousarray(levels.transpose(1, 2, 0))
        data = simplejpeg.encode_jpeg(pixels, quality, "RGB", "420", fastdct=False)
        return simplejpeg.decode_jpeg(data, "RGB").transpose(2, 0, 1) / 255.0
    files = [simplejpeg.encode_jpeg(np.ascontiguousarray(one[..., None]), quality, "GRAY", "Gray") for one in levels]
    return np.stack([simplejpeg.decode_jpeg(data, "GRAY")[..., 0] for data in files]) / 255.0


def _sheared(
    values: Values, reach: float, drawn: Float64[np.ndarray, "3 2"]
) -> tuple[Float64[np.ndarray, "H W"], Float64[np.ndarray, "H W"]]:
    """Where pixels come from, so that three corners of the middle square move up to `reach` pixels on both axes."""
    rows, columns = grid_of(values)
    middle, third = np.array(middle_of(values)), max(1.0, min(values.shape[1:]) / 3)
    before = middle + third * np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    after = before + reach * (2 * drawn - 1)
    slopes = np.linalg.solve(np.column_stack([before, np.ones(3)]), after)  # [3, 2]
    down, right = (rows * slopes[0, k] + columns * slopes[1, k] + slopes[2, k] for k in range(2))
    return down, right


def _bending(
    drawn: Float64[np.ndarray, "2 H W"], strength: float, deviation: float, scale: float
) -> Float64[np.ndarray, "2 H W"]:
    """How far every pixel is moved down and right, in pixels.

    Smoothed noise is the flatter the more pixels it is smoothed over, so that its strength shrinks with the square of
    the picture's scale where its deviation shrinks with the scale.
    """
    return strength * scale**2 * smoothed(2 * drawn - 1, deviation * scale)


def _means(side: int, blocks: int) -> Float64[np.ndarray, "b s"]:
    """The matrix that takes the mean of every block along one axis."""
    edges = np.arange(blocks + 1) * side / blocks
    pixels = np.arange(side)
    shared = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return shared.clip(0) * blocks / side
