"""The picture that a figure is drawn of: a file of the user's, or the stained-glass window that ships with Vitrail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from ..data.decoding.decode import decode_image
from ..errors import DataError
from ..spec import ImageSpec

PANES = Path(__file__).parent / "panes_60x100.png"
"""Our own picture, 60 x 100 pixels, one channel; examples/draw_panes.py draws it."""


def read(path: Path, channels: int = 1) -> UInt8[np.ndarray, "H W C"]:
    """A picture at its own size, from an image file or a `.npy` array.

    Floats of a `.npy` file are read as 0..1, black to white, and 8-bit numbers as they are.

    Raises:
        DataError: not readable, floats outside 0..1, or another number of channels; the message names the file.
    """
    path = Path(path)
    if path.suffix.lower() != ".npy":
        return decode_image(path, ImageSpec(channels=channels))
    return decode_image(_array(path), ImageSpec(channels=channels, low=0.0, high=1.0))


def _array(path: Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as problem:
        raise DataError(f"{path} must hold one array of numbers. It cannot be read: {problem}.") from problem
    if not isinstance(array, np.ndarray) or array.ndim not in (2, 3) or array.dtype.kind not in "fiub":
        shape = list(getattr(array, "shape", ()))
        raise DataError(f"{path} must hold numbers [H, W] or [H, W, C]. Got shape {shape}.")
    if array.dtype.kind == "f" and array.size and not (array.min() >= 0 and array.max() <= 1):
        raise DataError(
            f"{path} must hold floats from 0 (black) to 1 (white). Got {array.min():g} to {array.max():g}; "
            "divide by the largest value, or save 8-bit numbers."
        )
    if array.dtype.kind != "f" and array.dtype != np.uint8:
        raise DataError(f"{path} must hold floats in 0..1 or 8-bit numbers. Got {array.dtype}.")
    return array
