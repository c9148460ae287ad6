"""Pictures in files to read: drawn, as detailed as photographs, the same each time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from ..randomness import derive

QUALITY = 90
"""Of the JPEG files."""
GRAIN = (64, 16, 4, 1)
"""Pixels of the squares whose brightness is drawn; the finer, the fainter."""


def write(folder: Path, count: int, size: tuple[int, int], colours: int = 3) -> list[Path]:
    """JPEG files in two class folders.

    Args:
        size: (height, width) in pixels.
        colours: 3, or 1 for grey.
    """
    from PIL import Image

    paths = []
    for number in range(count):
        path = folder / "ab"[number % 2] / f"{number:05}.jpg"
        path.parent.mkdir(exist_ok=True, parents=True)
        values = drawn(number, *size)
        Image.fromarray(values if colours == 3 else values[..., 0]).save(path, quality=QUALITY)
        paths.append(path)
    return paths


def drawn(number: int, height: int, width: int) -> UInt8[np.ndarray, "H W 3"]:
    """Squares of several sizes over each other, with the power at each size that photographs have."""
    generator = np.random.default_rng(derive(0, "pictures to read", number))
    picture = np.full((height, width, 3), 128.0, np.float32)
    for grain in GRAIN:
        shape = (-(-height // grain), -(-width // grain), 3)
        squares = generator.normal(0, 4 + 4 * np.log2(grain), shape).astype(np.float32)
        picture += squares.repeat(grain, axis=0).repeat(grain, axis=1)[:height, :width]
    return np.rint(picture.clip(0, 255)).astype(np.uint8)
