"""What the plan must know of the training pictures: how many, how large, how many channels, which value range."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..data.decode import stored_range
from ..data.source import Picture, Source
from ..data.stored import read
from ..errors import DataError
from ..randomness import permutation
from .planner import Fingerprint

SAMPLE = 256
Found = TypeVar("Found")


def fingerprint(source: Source, train: NDArray[np.int64], seed: int) -> Fingerprint:
    """Look at up to 256 training pictures; at all of them for the value range, if any is deeper than 8 bits.

    Pictures that cannot be read are passed over here: the check has named them already.

    Raises:
        DataError: none of the sampled pictures can be read.
    """
    chosen = train[permutation(seed, "fingerprint", 0, len(train))[:SAMPLE]]
    shapes = [shape for shape in _each(_shape, (source.pictures[row] for row in chosen)) if shape is not None]
    if not shapes:
        raise DataError(f"None of {len(chosen)} training pictures of {source.name} can be read.")
    heights, widths, channels, eight_bit = (np.array(column) for column in zip(*shapes, strict=True))
    low, high = 0.0, 255.0
    if not eight_bit.all():
        ranges = [pair for pair in _each(_range, (source.pictures[row] for row in train)) if pair is not None]
        low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    return Fingerprint(
        name=source.name,
        count=len(train),
        classes=len(source.classes),
        height=int(np.median(heights)),
        width=int(np.median(widths)),
        channels=int(channels.max()),
        low=0.0 if low >= 0 else low,
        high=_full_scale(high),
    )


def _full_scale(largest: float) -> float:
    """The white that a largest stored value suggests: 1 for fractions, else the next full count of bits."""
    if largest <= 1:
        return 1.0
    return next((float(2**bits - 1) for bits in (8, 10, 12, 14, 16) if largest <= 2**bits - 1), largest)


def _each(look: Callable[[Picture], Found], pictures: Iterable[Picture]) -> list[Found]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(look, pictures))


def _shape(picture: Picture) -> tuple[int, int, int, bool] | None:
    try:
        values = picture if isinstance(picture, np.ndarray) else read(picture).values
    except DataError:
        return None
    channels = 1 if values.ndim == 2 else values.shape[2]
    return values.shape[0], values.shape[1], channels, values.dtype == np.uint8


def _range(picture: Picture) -> tuple[float, float] | None:
    try:
        return stored_range(picture)
    except DataError:
        return None
