"""Arrays that hold many pictures at once: which axis is what, told by rules that can be said in a sentence."""

from __future__ import annotations

import math

import numpy as np

from ...errors import DataError
from .given import channels_come_first, in_numbers


def stack_of(values: np.ndarray, where: str, is_tensor: bool = False) -> tuple[np.ndarray, tuple[str, ...]]:
    """Pictures [n, H, W] or [n, H, W, C] out of [n, H, W], [n, H, W, C] or [n, C, H, W], and what is to be noted.

    Values stay as they are, fractions too: the value range is decided later, once, on the training pictures. Nothing
    is copied, except truth values, which become 0 and 255.

    Args:
        where: what messages call the array.
        is_tensor: whether torch's order, channels first, is the likelier one.

    Raises:
        DataError: no stack of pictures; the message says why and how to give one.
    """
    if values.dtype.hasobject:
        raise DataError(
            f"{where} holds Python objects instead of numbers, as pictures of different sizes do. Save pictures of one "
            "size as one array [n, height, width, channels], and those of different sizes as files."
        )
    if values.ndim not in (3, 4):
        raise DataError(f"{where} {_wrong_axes(values.shape)}")
    if values.size == 0:
        raise DataError(f"{where} has the shape {list(values.shape)}: no pictures, or pictures without pixels.")
    values = in_numbers(values, where)
    if values.ndim == 4 and channels_come_first(values.shape[1:], where, is_tensor):
        turned = values.transpose(0, 2, 3, 1)
        note = f"{where}: the shape {list(values.shape)} was read as [n, channels, height, width]."
        return turned, () if is_tensor else (note,)
    return values, ()


def _wrong_axes(shape: tuple[int, ...]) -> str:
    """Why a number of axes other than 3 or 4 makes no pictures."""
    begin = f"has the shape {list(shape)}. "
    if len(shape) == 5:
        return begin + (
            "That is a volume or a film a row, and pictures have no depth or time: give its slices or frames as "
            "pictures of their own, [n, height, width, channels]."
        )
    if len(shape) == 2:
        side = math.isqrt(shape[1])
        square = f", perhaps {shape[0]} x {side} x {side}" if side > 1 and side * side == shape[1] else ""
        return begin + f"A row of numbers is no picture: reshape it to [n, height, width]{square}."
    return begin + "Pictures are [n, height, width], [n, height, width, channels] or [n, channels, height, width]."
