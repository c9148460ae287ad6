"""The one decoder: a picture in, uint8 [H, W, C] out, the same for training, prediction, server and export.

What a file stores and what a model reads are tied by the value range low..high of the ImageSpec: the stored value
`low` becomes 0, `high` becomes 255. Alpha is laid on white.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import numpy as np
from jaxtyping import Shaped, UInt8
from numpy.typing import NDArray

from ..errors import DataError
from ..spec import ImageSpec
from .decoding.stored import parse, read
from .decoding.values import Stored
from .source import Picture

TOLERATED = 0.05  # share of pixels beyond low..high that may turn plain black or white


def decode(picture: Picture | bytes, spec: ImageSpec) -> UInt8[np.ndarray, "H W C"]:
    """The picture as the model's number of channels, upright, scaled from the spec's low..high to 0..255.

    Grey becomes RGB by repetition, RGB becomes grey by the luma weights of ITU-R BT.601; other channel counts must
    match. Values beyond low..high become black or white, as an overexposed film does, but a picture with more than
    5 % of them is of another range and is refused. 8-bit pictures are taken as 0..255 already when low..high belongs
    to deeper or fractional ones (high above 255, or at most 1). Fractions 0..1 are refused where 255 or more is white:
    they would all be black.

    Raises:
        DataError: not readable, too large, of another value range or channel count; the message names the picture.
    """
    if isinstance(picture, bytes):
        return convert(parse(picture, spec), spec)
    stored = read(picture, spec)
    try:
        return convert(stored, spec)
    except DataError as error:
        if isinstance(picture, np.ndarray):
            raise
        name = picture if isinstance(picture, Path) else picture.name
        raise DataError(f"{name}: {error}") from None


def convert(stored: Stored, spec: ImageSpec) -> UInt8[np.ndarray, "H W C"]:
    """The second half of `decode`, for one picture that has been read."""
    values = stored.values if stored.values.ndim == 3 else stored.values[..., None]
    return to_bytes(values, stored.alpha, spec.channels, spec.low, spec.high)


def to_bytes(
    values: Shaped[np.ndarray, "*B H W c"],
    alpha: Shaped[np.ndarray, "*B H W"] | None,
    channels: int,
    low: float,
    high: float,
) -> UInt8[np.ndarray, "*B H W C"]:
    """Scale, lay on white, convert channels: for one picture or a stack of them.

    Raises:
        DataError: of the first picture of the stack that `decode` would refuse.
    """
    scaled = _scale(values, low, high)
    if alpha is not None:
        opacity = alpha if alpha.dtype == np.uint8 else _stretch(alpha, 0, np.iinfo(alpha.dtype).max)
        scaled = _on_white(scaled, opacity[..., None])
    return _with_channels(scaled, channels)


def _scale(values: np.ndarray, low: float, high: float) -> np.ndarray:
    if values.dtype == np.uint8 and ((low, high) == (0, 255) or high > 255 or high <= 1):
        return values
    _check_values(values.reshape(-1, *values.shape[-3:]), low, high)
    if values.dtype == np.uint8:
        return _stretch(np.arange(256), low, high)[values]
    return _stretch(values, low, high)


def _check_values(pictures: Shaped[np.ndarray, "B H W c"], low: float, high: float) -> None:
    """Refuse the first picture with values that are no numbers, that are fractions of 0..255, or of another range."""
    one = (1, 2, 3)  # each rule looks at one picture at a time, however many there are
    beyond = np.count_nonzero((pictures < low) | (pictures > high), axis=one) / max(1, pictures[:1].size)
    wrong = beyond > TOLERATED
    if pictures.dtype.kind == "f":
        wrong |= ~np.isfinite(pictures).all(axis=one)
        if high >= 255:
            largest = pictures.max(axis=one)
            wrong |= (pictures.min(axis=one) >= 0) & (largest > 0) & (largest <= 1)
    for place in np.flatnonzero(wrong)[:1]:
        _refuse(pictures[place], low, high, float(beyond[place]))


def _refuse(values: np.ndarray, low: float, high: float, beyond: float) -> NoReturn:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        unsound = values.size - np.count_nonzero(np.isfinite(values))
        raise DataError(f"{unsound:,} of {values.size:,} values are not finite numbers (NaN or infinity).")
    if beyond <= TOLERATED:
        way = f"multiply by {high:g}" if low == 0 else "bring them to that range"
        raise DataError(f"holds fractions 0 to 1, the model reads {low:g} to {high:g}; {way}.")
    raise DataError(
        f"Values {low:g} to {high:g} become black to white. This picture holds {values.min():g} to "
        f"{values.max():g}, with {beyond:.0%} of its values beyond. Set the value range (low and high) to fit."
    )


def _stretch(values: np.ndarray, low: float, high: float) -> np.ndarray:
    exact: NDArray[np.floating] = values.astype(np.float32 if values.dtype.itemsize <= 2 else np.float64)
    return np.rint((exact - low) * (255 / (high - low))).clip(0, 255).astype(np.uint8)


def _on_white(values: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Rounded to the nearest level, in integers: exact where alpha is 0 or 255."""
    opacity = alpha.astype(np.uint16)
    return ((values * opacity + 255 * (255 - opacity) + 127) // 255).astype(np.uint8)


def _with_channels(values: np.ndarray, channels: int) -> np.ndarray:
    have = values.shape[-1]
    if have == channels:
        return values
    if have == 1 and channels == 3:
        return np.repeat(values, 3, axis=-1)
    if have == 3 and channels == 1:
        red, green, blue = np.moveaxis(values.astype(np.uint32), -1, 0)
        grey = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16  # BT.601 in 16-bit fractions, as Pillow does
        return grey.astype(np.uint8)[..., None]
    hint = " Are its channels first? They must come last." if values.shape[-3] == channels else ""
    raise DataError(f"The model reads {channels} channels, the picture has {have}.{hint}")
