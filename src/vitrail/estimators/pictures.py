"""What may stand for X: arrays and lists of pictures, names of files, or rows of numbers, pictures laid flat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from jaxtyping import Shaped
from PIL.Image import Image
from torch import Tensor

from ..errors import UsageError
from ..services.train_arguments import parse_image_size

ROW = "row"
"""As `image_size`: each row of X is a picture of one pixel's height, such as a spectrum."""
Pictures = np.ndarray | list[object]
"""An array [n, H, W] or [n, H, W, C], or a list of what `vitrail.fit` takes as a picture."""


def listed(X: object) -> list[object] | None:
    """The pictures of a list, or of a column of them; None for arrays and nested lists of numbers.

    Raises:
        UsageError: a single picture instead of several.
    """
    if isinstance(X, str | bytes | Image):
        said = repr(X[:80]) if isinstance(X, str | bytes) else "one picture"
        raise UsageError(f"X must hold several pictures, one for each row. Got {said}; write it as a list.")
    if isinstance(X, Tensor):
        return None if X.ndim < 3 else list(X)
    cells = X.to_numpy() if hasattr(X, "to_numpy") and getattr(X, "ndim", 0) == 1 else X  # a Series of pandas
    if isinstance(cells, np.ndarray) and (cells.ndim != 1 or cells.dtype.kind not in "OSU"):
        return None
    if not isinstance(cells, Sequence | np.ndarray) or not len(cells) or not _is_picture(cells[0]):
        return None
    return [str(cell) if isinstance(cell, np.str_) else cell for cell in cells]


def axes_of(X: Any) -> int:
    """How many axes something like an array has."""
    return int(X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim)


def shape_of(features: int, image_size: object) -> tuple[int, int]:
    """Height and width of the grey picture that a row of X is.

    Args:
        image_size: None for squares, "row" for one row of pixels, or the size itself.

    Raises:
        UsageError: so many numbers are no such picture.
    """
    if image_size == ROW:
        return 1, features
    if image_size is not None:
        height, width = parse_image_size(cast("Any", image_size))
        if height * width != features:
            raise UsageError(
                f"image_size says {height}x{width} pixels, which are {height * width:,} numbers in each row of X. "
                f"X has {features:,} of them."
            )
        return height, width
    side = math.isqrt(features)
    if side * side != features:
        raise UsageError(
            f"A row of X must be a square grey picture, and {features:,} numbers are no square. Say image_size="
            '(height, width) if the pictures are not square, image_size="row" if each is one row of pixels, or give '
            "them as [n, height, width] or [n, height, width, channels]."
        )
    return side, side


def value_range(rows: Shaped[np.ndarray, " n *F"]) -> tuple[float, float]:
    """What is black and white in rows of numbers: the smallest or 0, and the largest; 1 for fractions of 0..1."""
    low, high = min(0.0, float(rows.min())), float(rows.max())
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    return low, high if high > low else low + 1


def within(rows: Shaped[np.ndarray, "n F"], low: float, high: float) -> Shaped[np.ndarray, "n F"]:
    """Rows with values beyond black and white brought to these; bytes, which are never beyond 0..255, as they are."""
    if rows.dtype == np.uint8 or not rows.size or (rows.min() >= low and rows.max() <= high):
        return rows
    return rows.clip(low, high)


def _is_picture(thing: object) -> bool:
    """Whether an element of a list is a picture rather than a row of numbers."""
    if isinstance(thing, np.ndarray | Tensor):
        return thing.ndim > 1
    return isinstance(thing, str | bytes | Image | dict) or hasattr(thing, "__fspath__")
