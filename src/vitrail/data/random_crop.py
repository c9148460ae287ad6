"""Random resized crops and flips (Szegedy et al. 2015), drawn per image: independent of batch and order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64

from ..errors import UsageError
from ..randomness import uniform

TRIES = 10
CROP_DRAWS = 2 * TRIES + 2
"""Random numbers per rectangle: an area and an aspect ratio for each try, then its row and its column."""


@dataclass(frozen=True)
class RandomResizedCrop:
    """Draws rectangles of random area and aspect ratio for images of any size (RandomResizedCrop).

    Ten tries of an area and a width-to-height ratio; the first that fits is placed anywhere in the image with equal
    chance. If none fits, the largest rectangle of an allowed ratio in the middle.

    Source: Szegedy et al. 2015, section 6; the distribution is that of torchvision's RandomResizedCrop.
    """

    seed: int
    scale: tuple[float, float] = (0.08, 1.0)
    """Smallest and largest area, as fractions of the image's; every area between is as likely."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Smallest and largest width over height; its logarithm is uniform."""
    mirror: bool = False
    """Whether half of the crops are flipped horizontally, after resizing."""

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise UsageError(f"The areas of a cut must rise within 0 < area <= 1. Got {self.scale}.")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise UsageError(f"The width-to-height ratios of a cut must be positive and rise. Got {self.ratio}.")

    def boxes(
        self, indices: Int64[np.ndarray, " n"], epoch: int, sizes: Int64[np.ndarray, "n 2"]
    ) -> Int64[np.ndarray, "n 4"]:
        """(top, left, height, width) per image, of the images' (height, width); it depends on its index alone."""
        keys = uniform(self.seed, "cut", epoch, indices, CROP_DRAWS)
        sides, fits = first_fitting_size(keys, sizes, sizes, self.scale, self.ratio)
        sides = np.where(fits[:, None], sides, self._fallback_size(sizes))
        corners = np.where(fits[:, None], draw_positions(keys, sizes - sides), (sizes - sides) // 2)
        return np.concatenate([corners, sides], axis=1)

    def draw_flips(self, indices: Int64[np.ndarray, " n"], epoch: int) -> Bool[np.ndarray, " n"]:
        """Which images are flipped in this epoch; it depends on an image's index alone."""
        if not self.mirror:
            return np.zeros(len(indices), dtype=bool)
        return uniform(self.seed, "mirror", epoch, indices, 1)[:, 0] < 0.5

    def _fallback_size(self, sizes: Int64[np.ndarray, "n 2"]) -> Int64[np.ndarray, "n 2"]:
        heights, widths = sizes.T
        lowest, highest = self.ratio
        tall, wide = widths / heights < lowest, widths / heights > highest
        inner = [np.where(tall, np.rint(widths / lowest), heights), np.where(wide, np.rint(heights * highest), widths)]
        return np.stack(inner, axis=1).astype(np.int64)


def first_fitting_size(
    keys: Float64[np.ndarray, "n draws"],
    sizes: Int64[np.ndarray, "n 2"],
    largest: Int64[np.ndarray, "n 2"],
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[Int64[np.ndarray, "n 2"], Bool[np.ndarray, " n"]]:
    """(height, width) of the first of ten tries with sides within 1..largest, and whether there was one.

    Args:
        keys: in [0, 1); the first ten give areas, the next ten width-to-height ratios.
        sizes: (height, width) of the images, whose areas `scale` is a fraction of.
    """
    areas = (scale[0] + (scale[1] - scale[0]) * keys[:, :TRIES]) * sizes.prod(axis=1)[:, None]  # [n, tries]
    low, high = np.log(ratio)
    ratios = np.exp(low + (high - low) * keys[:, TRIES : 2 * TRIES])  # [n, tries]
    sides = np.rint(np.sqrt(np.stack([areas / ratios, areas * ratios], axis=2))).astype(np.int64)  # [n, tries, 2]
    fits = ((sides > 0) & (sides <= largest[:, None])).all(axis=2)  # [n, tries]
    first = fits.argmax(axis=1)
    return sides[np.arange(len(sides)), first], fits.any(axis=1)


def draw_positions(keys: Float64[np.ndarray, "n draws"], margins: Int64[np.ndarray, "n 2"]) -> Int64[np.ndarray, "n 2"]:
    """(top, left), uniform in 0..margin, from the two random numbers that follow the tries."""
    return (keys[:, 2 * TRIES : CROP_DRAWS] * (margins + 1)).astype(np.int64)
