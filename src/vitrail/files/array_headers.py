"""What the header of a NumPy array says, judged before a byte of the array is read or any memory taken for it."""

from __future__ import annotations

import io
import math
from typing import NamedTuple

import numpy as np
from numpy.lib import format as npy

from ..errors import DamagedFileError

HEADER = 64 * 2**10
"""Bytes within which an array's header must end."""
WORDS = 2**10
"""Letters of the header itself, which NumPy parses as Python text; three axes take 120."""


class Header(NamedTuple):
    """What an array's header says."""

    dtype: np.dtype
    shape: tuple[int, ...]
    is_by_columns: bool
    begin: int
    """Bytes of the header."""


def parse_header(data: bytes, where: str) -> Header:
    """The header that `data` begins with.

    Raises:
        DamagedFileError: there is none.
    """
    file = io.BytesIO(data)
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, by_columns, dtype = read(file, max_header_size=WORDS)
    except Exception as error:  # NumPy's parser can raise anything
        said = " ".join(str(error).split())[:80]
        raise damaged(where, f"its header cannot be read, {type(error).__name__}: {said}") from error
    return Header(dtype, tuple(shape), bool(by_columns), file.tell())


def check_size(header: Header, size: int, where: str) -> None:
    """Header and array must fill `size` bytes exactly.

    Raises:
        DamagedFileError: they do not, or the shape is none.
    """
    shape = header.shape
    if not all(0 <= length < 2**63 for length in shape) or len(shape) > 32:
        raise damaged(where, "its shape is no list of counts")
    if not math.prod(shape) and math.prod(max(length, 1) for length in shape) >= 2**60:
        raise damaged(where, f"no array can have the shape {list(shape)}")
    needed = math.prod(shape) * header.dtype.itemsize
    if needed != size - header.begin:
        raise damaged(where, f"its shape {list(shape)} takes {needed} bytes, {size - header.begin} are there")


def damaged(where: str, reason: str) -> DamagedFileError:
    """The error for an array that is not whole."""
    return DamagedFileError(f"{where} is not a whole array ({reason}). It is cut short or changed: copy it again.")
