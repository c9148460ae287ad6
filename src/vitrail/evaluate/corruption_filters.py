"""ImageNet-C corruptions (noise, blur, digital), the random numbers of a corruption, and the image filters they use.

Every corruption takes the values of one image, a severity from 1 to 5, and its own random numbers. Source of all tables
of levels: Hendrycks and Dietterich 2019, "Benchmarking neural network robustness to common corruptions and
perturbations", and its published scripts. Weather is in `corruptions_weather`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64, Int64

from ..randomness import uniform

ImageValues = Float64[np.ndarray, "C H W"]
"""One image, 0 black and 1 white."""


@dataclass(frozen=True)
class CorruptionRandom:
    """Random numbers of one corruption: a function of these four fields and the purpose, not of earlier draws."""

    seed: int
    kind: str
    severity: int
    index: int
    """Of the image."""

    def uniform(self, purpose: str, *shape: int) -> Float64[np.ndarray, ...]:
        """Uniform numbers in [0, 1)."""
        count, which = math.prod(shape), np.array([self.index], np.int64)
        return uniform(self.seed, f"corruption {self.kind} {purpose}", self.severity, which, count).reshape(shape)

    def normal(self, purpose: str, *shape: int) -> Float64[np.ndarray, ...]:
        """Standard normal numbers."""
        from scipy.special import ndtri

        return np.asarray(ndtri(np.maximum(self.uniform(purpose, *shape), 2.0**-54)))

    def uniform_between(self, low: float, high: float, purpose: str) -> float:
        """One uniform number in [low, high)."""
        return low + (high - low) * float(self.uniform(purpose, 1)[0])

    def random_sign(self, purpose: str) -> int:
        """-1 or 1 with equal probability."""
        return 1 if float(self.uniform(purpose, 1)[0]) < 0.5 else -1


Corruption = Callable[[ImageValues, int, CorruptionRandom], ImageValues]
"""(values of one image, severity 1 to 5, random numbers) -> new values, which may lie outside 0..1."""


# -- Noise

GAUSSIAN_NOISE_LEVELS = (0.08, 0.12, 0.18, 0.26, 0.38)
"""Standard deviations, where white is 1."""
SHOT_NOISE_LEVELS = (60, 25, 12, 5, 3)
"""Photon count of a white value."""
IMPULSE_NOISE_LEVELS = (0.03, 0.06, 0.09, 0.17, 0.27)
"""Fractions of the values that become black or white."""


def gaussian_noise(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Additive Gaussian noise of constant deviation."""
    return values + GAUSSIAN_NOISE_LEVELS[severity - 1] * draws.normal("noise", *values.shape)


def shot_noise(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Poisson noise of photon counts."""
    photons = SHOT_NOISE_LEVELS[severity - 1]
    levels = np.rint(255 * values).astype(np.int64)
    return _poisson_counts(levels, photons, draws.uniform("photons", *values.shape)) / photons


def impulse_noise(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Salt-and-pepper noise on single values of single channels."""
    share, drawn = IMPULSE_NOISE_LEVELS[severity - 1], draws.uniform("noise", *values.shape)
    return np.where(drawn < share / 2, 0.0, np.where(drawn < share, 1.0, values))


NOISE_CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
}


def _poisson_counts(
    levels: Int64[np.ndarray, "C H W"], photons: int, uniforms: Float64[np.ndarray, "C H W"]
) -> Int64[np.ndarray, "C H W"]:
    """Poisson counts with mean level / 255 * photons, by inverting the cumulative distribution at the uniforms.

    The cumulative distributions of all 256 levels form one rising list, each offset by its level.
    """
    means = np.arange(256)[:, None] * photons / 255  # [256, 1]
    most = photons + round(12 * photons**0.5) + 20
    factors = np.concatenate([np.exp(-means), means / np.arange(1, most)], axis=1)  # [256, most]
    cumulated = np.minimum(np.cumprod(factors, axis=1).cumsum(1), 1)
    places = np.searchsorted((np.arange(256)[:, None] + cumulated).ravel(), levels + uniforms, side="right")
    return np.minimum(places - levels * most, most)


# -- Blur. Lengths are for sides of 224 pixels and scale with the shorter side; below half a pixel little is left.

DEFOCUS_LEVELS = (3, 4, 6, 8, 10)
"""Radii of the disc; its rim is soft by a pixel."""
GLASS_LEVELS = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))
"""Deviation of the blur before and after, displacement in pixels, and number of rounds."""
MOTION_LEVELS = ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))
"""Half the length of the streak, and the deviation of its Gaussian."""
ZOOM_LEVELS = ((1.10, 11), (1.15, 16), (1.20, 11), (1.24, 13), (1.30, 11))
"""Largest zoom factor, and number of factors from 1 to it."""


def defocus_blur(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Convolution with a disc."""
    return convolve(values, disc_kernel(DEFOCUS_LEVELS[severity - 1] * relative_scale(values)))


def glass_blur(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Random displacement of every pixel between two Gaussian blurs; the paper's script swaps whole pixels instead."""
    deviation, reach, rounds = GLASS_LEVELS[severity - 1]
    scale = relative_scale(values)
    ways = (2 * draws.uniform("ways", rounds, 2, *values.shape[1:]) - 1).sum(0)  # [2, H, W]
    down, right = (reach + 0.5) * scale * ways
    rows, columns = pixel_grid(values)
    rough = sample_bilinear(gaussian_blur(values, deviation * scale), rows + down, columns + right, "reflect")
    return gaussian_blur(rough, deviation * scale)


def motion_blur(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Convolution with a one-sided Gaussian streak, up to 45 degrees from the horizontal."""
    reach, deviation = MOTION_LEVELS[severity - 1]
    scale, angle = relative_scale(values), draws.uniform_between(-math.pi / 4, math.pi / 4, "angle")
    return convolve(values, motion_kernel(2 * reach * scale, deviation * scale, angle))


def zoom_blur(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Mean of the image and centred zooms of it."""
    most, count = ZOOM_LEVELS[severity - 1]
    total = values.copy()
    for factor in np.linspace(1, most, count):
        rows, columns = (_zoom_matrix(side, float(factor)) for side in values.shape[1:])
        total += rows @ values @ columns.T
    return total / (count + 1)


BLUR_CORRUPTIONS: dict[str, Corruption] = {
    "defocus_blur": defocus_blur,
    "glass_blur": glass_blur,
    "motion_blur": motion_blur,
    "zoom_blur": zoom_blur,
}


def _zoom_matrix(side: int, factor: float) -> Float64[np.ndarray, "s s"]:
    """Matrix of a bilinear zoom of one axis about its middle that keeps its length."""
    places = (side - 1) / 2 + (np.arange(side) - (side - 1) / 2) / factor
    low = np.floor(places).astype(np.int64)
    matrix = np.zeros((side, side))
    matrix[np.arange(side), low] = 1 - (places - low)
    matrix[np.arange(side), np.minimum(low + 1, side - 1)] += places - low
    return matrix


# -- Digital corruptions

CONTRAST_LEVELS = (0.4, 0.3, 0.2, 0.1, 0.05)
"""Factor of every value's distance from the mean of its channel."""
ELASTIC_LEVELS = (
    (12.2, 2.44, 4.88),
    (17.08, 2.44, 4.88),
    (29.28, 2.44, 4.88),
    (488.0, 170.8, 24.4),
    (488.0, 19.52, 48.8),
)
"""Strength and deviation of the displacement, and how far three points are moved, in pixels for sides of 224. The five
are the paper's in order of strength: its own order is 4, 5, 1, 2, 3 of these, which gets weaker in the middle."""
PIXELATE_LEVELS = (0.6, 0.5, 0.4, 0.3, 0.25)
"""Blocks per pixel along a side of 224 pixels."""
JPEG_QUALITIES = (25, 18, 15, 10, 7)
"""JPEG quality factors."""


def contrast(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Lower contrast: moves every channel towards its mean."""
    means = values.mean((1, 2), keepdims=True)
    return means + CONTRAST_LEVELS[severity - 1] * (values - means)


def elastic_transform(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Elastic deformation: a random affine map of three points plus smooth displacements, in one resampling."""
    strength, deviation, moved = ELASTIC_LEVELS[severity - 1]
    scale = relative_scale(values)
    rows, columns = _random_affine_grid(values, moved * scale, draws.uniform("points", 3, 2))
    # noise smoothed over more pixels is flatter: the strength scales with the square of the image's scale
    bending = 2 * draws.uniform("bending", 2, *values.shape[1:]) - 1
    down, right = strength * scale**2 * gaussian_blur(bending, deviation * scale)
    return sample_bilinear(values, rows + down, columns + right, "reflect")


def pixelate(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """Pixelation by block means; block size minus one pixel scales with the image, and partial pixels are weighted."""
    block = 1 + (1 / PIXELATE_LEVELS[severity - 1] - 1) * relative_scale(values)
    sides = [(side, max(1, round(side / block))) for side in values.shape[1:]]
    rows, columns = (_block_mean_matrix(*each) for each in sides)
    down, across = (((np.arange(side) + 0.5) * blocks / side).astype(np.int64) for side, blocks in sides)
    return (rows @ values @ columns.T)[:, down][:, :, across]


def jpeg_compression(values: ImageValues, severity: int, draws: CorruptionRandom) -> ImageValues:
    """JPEG encoding and decoding; blocks have 8 pixels for any image size."""
    return jpeg_round_trip(values, JPEG_QUALITIES[severity - 1])


DIGITAL_CORRUPTIONS: dict[str, Corruption] = {
    "contrast": contrast,
    "elastic_transform": elastic_transform,
    "pixelate": pixelate,
    "jpeg_compression": jpeg_compression,
}


def _random_affine_grid(
    values: ImageValues, reach: float, noise: Float64[np.ndarray, "3 2"]
) -> tuple[Float64[np.ndarray, "H W"], Float64[np.ndarray, "H W"]]:
    """Sampling grid of the affine map that moves three corners of the middle square up to `reach` pixels per axis."""
    rows, columns = pixel_grid(values)
    middle, third = np.array(image_center(values)), max(1.0, min(values.shape[1:]) / 3)
    before = middle + third * np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    after = before + reach * (2 * noise - 1)
    slopes = np.linalg.solve(np.column_stack([before, np.ones(3)]), after)  # [3, 2]
    down, right = (rows * slopes[0, k] + columns * slopes[1, k] + slopes[2, k] for k in range(2))
    return down, right


def _block_mean_matrix(side: int, blocks: int) -> Float64[np.ndarray, "b s"]:
    """Matrix of block means along one axis."""
    edges = np.arange(blocks + 1) * side / blocks
    pixels = np.arange(side)
    shared = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return shared.clip(0) * blocks / side


# -- Filters and sampling that the corruptions share

REFERENCE_SIDE = 224
"""Image side, in pixels, that the tables of lengths are for."""


def relative_scale(values: ImageValues) -> float:
    """Shorter side of the image divided by 224."""
    return min(values.shape[1:]) / REFERENCE_SIDE


def gaussian_blur(values: Float64[np.ndarray, "*C H W"], deviation: float) -> Float64[np.ndarray, "*C H W"]:
    """Gaussian blur with mirrored edges, deviation in pixels: damps each coefficient of the cosine transform."""
    from scipy.fft import dctn, idctn

    waves = dctn(values, axes=(-2, -1), norm="ortho")
    for axis in (-2, -1):
        speeds = np.pi * np.arange(values.shape[axis]) / values.shape[axis]  # radians per pixel
        damping = np.exp(-0.5 * np.square(deviation * speeds))
        waves = waves * (damping[:, None] if axis == -2 else damping)
    return np.asarray(idctn(waves, axes=(-2, -1), norm="ortho"))


def convolve(values: ImageValues, kernel: Float64[np.ndarray, "k k"]) -> ImageValues:
    """Convolution with mirrored edges by a kernel of odd side whose entries sum to 1."""
    from scipy.signal import fftconvolve

    reach = len(kernel) // 2
    beyond = np.pad(values, ((0, 0), (reach, reach), (reach, reach)), mode="symmetric")
    return np.asarray(fftconvolve(beyond, kernel[None], mode="valid", axes=(1, 2)))


def disc_kernel(radius: float) -> Float64[np.ndarray, "k k"]:
    """Defocus kernel: a disc of many points, each distributed bilinearly over four pixels."""
    reach, fineness = math.ceil(radius), max(8, math.ceil(4 * radius))
    points = np.linspace(-1, 1, 2 * fineness + 1)
    inside = (np.square(points[:, None]) + np.square(points) <= 1).astype(np.float64)
    shares = (1 - np.abs(np.arange(-reach, reach + 1)[:, None] - radius * points)).clip(0)  # [k, points]
    return shares @ inside @ shares.T / inside.sum()


def motion_kernel(length: float, deviation: float, angle: float) -> Float64[np.ndarray, "k k"]:
    """Motion kernel: half a Gaussian that starts in the middle and ends after `length` pixels.

    Args:
        angle: radians; 0 is along rows.
    """
    steps = np.arange(0, length + 0.125, 0.25)
    weights = np.exp(-0.5 * np.square(steps / deviation))
    reach = math.ceil(length) + 1
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
    for down, right, weight in zip(np.sin(angle) * steps, np.cos(angle) * steps, weights, strict=True):
        row, column = math.floor(down), math.floor(right)
        below, beside = down - row, right - column
        for i, j, part in (
            (0, 0, (1 - below) * (1 - beside)),
            (0, 1, (1 - below) * beside),
            (1, 0, below * (1 - beside)),
            (1, 1, below * beside),
        ):
            kernel[reach + row + i, reach + column + j] += weight * part
    return kernel / kernel.sum()


def sample_bilinear(
    values: ImageValues,
    rows: Float64[np.ndarray, "H W"],
    columns: Float64[np.ndarray, "H W"],
    beyond: Literal["nearest", "reflect"],
) -> ImageValues:
    """Bilinear sampling: pixel (i, j) of the result is the image at (rows[i, j], columns[i, j]).

    Args:
        beyond: padding outside the image: the edge repeated, or mirrored.
    """
    from scipy.ndimage import map_coordinates

    return np.stack([map_coordinates(channel, [rows, columns], order=1, mode=beyond) for channel in values])


def pixel_grid(values: ImageValues) -> tuple[Float64[np.ndarray, "H W"], Float64[np.ndarray, "H W"]]:
    """Row and column of every pixel."""
    grid = np.indices(values.shape[1:], dtype=np.float64)
    return grid[0], grid[1]


def image_center(values: ImageValues) -> tuple[float, float]:
    """Row and column of the centre."""
    return (values.shape[1] - 1) / 2, (values.shape[2] - 1) / 2


def jpeg_round_trip(values: ImageValues, quality: int) -> ImageValues:
    """Encode and decode as JPEG: three channels as RGB with 4:2:0 subsampling, other counts as grey images."""
    import simplejpeg

    levels = np.rint(255 * values).astype(np.uint8)
    if len(levels) == 3:
        pixels = np.ascontiguousarray(levels.transpose(1, 2, 0))
        data = simplejpeg.encode_jpeg(pixels, quality, "RGB", "420", fastdct=False)
        return simplejpeg.decode_jpeg(data, "RGB").transpose(2, 0, 1) / 255.0
    files = [simplejpeg.encode_jpeg(np.ascontiguousarray(one[..., None]), quality, "GRAY", "Gray") for one in levels]
    return np.stack([simplejpeg.decode_jpeg(data, "GRAY")[..., 0] for data in files]) / 255.0
