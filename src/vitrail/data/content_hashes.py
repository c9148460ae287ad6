"""Hashes of images as they are stored, by which copies are recognised under any name and in any folder."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .decoding.decode import read_file_bytes
from .parallel import map_in_order
from .source import ImageInput

UNREADABLE = 0
"""The hash of an image that cannot be read; no other has it."""


def read_content(image: ImageInput) -> bytes | np.ndarray:
    """The bytes of an image's file, or its values if it is an array.

    Raises:
        DataError: it is gone or cannot be read.
    """
    if isinstance(image, np.ndarray):
        return image
    return read_file_bytes(image) if isinstance(image, Path) else image.fetch()


def hash_content(image: ImageInput) -> int:
    """64-bit hash of a file's bytes, or of type, shape and values of an array; `UNREADABLE` if there is none."""
    try:
        content = read_content(image)
    except DataError:
        return UNREADABLE
    digest = hashlib.blake2b(digest_size=8)
    if isinstance(content, np.ndarray):
        digest.update(f"{content.dtype} {content.shape} ".encode())
        digest.update(np.ascontiguousarray(content).data)
    else:
        digest.update(content)
    return int.from_bytes(digest.digest(), "little") or 1


def hash_contents(images: Iterable[ImageInput], until: float | None = None) -> NDArray[np.uint64]:
    """The hash of each image in order, in one thread per core, as far as the time allows.

    Args:
        until: a value of `time.monotonic` after which no further image is started.
    """
    in_time = takewhile(lambda _: until is None or time.monotonic() <= until, images)
    return np.fromiter(map_in_order(hash_content, in_time), np.uint64)
