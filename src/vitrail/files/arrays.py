"""NumPy's files, `.npz` and `.npy`: numbers only, and each array's size is compared with its header before it is read.

An array of Python objects is a pickle in disguise and is refused by its number format. Arrays that lie unpacked in
the archive become views of the file, which is mapped, so that numbers are read when they are used.
"""

from __future__ import annotations

import math
import mmap
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import DamagedFileError
from .archive import Archive
from .array_headers import HEADER, check_size, parse_header
from .kinds import refuse_other

ARRAYS = 4_000
"""Arrays of the largest archive that is read."""
_NUMBERS = {
    "f8": torch.float64,
    "f4": torch.float32,
    "f2": torch.float16,
    "V2": torch.bfloat16,  # NumPy has no name for it and writes two bytes without a meaning, as JAX's files have it
    "i8": torch.int64,
    "i4": torch.int32,
    "i2": torch.int16,
    "i1": torch.int8,
    "u1": torch.uint8,
    "b1": torch.bool,
}


class _Array(NamedTuple):
    """What an array's header says."""

    dtype: torch.dtype
    is_swapped: bool
    """Whether its bytes are in the other order than this machine's."""
    shape: tuple[int, ...]
    is_by_columns: bool
    begin: int
    """Bytes of the header."""


def load_npz(path: Path) -> dict[str, Tensor]:
    """`open_npz` without its file."""
    return open_npz(path)[0]


def open_npz(path: Path) -> tuple[dict[str, Tensor], mmap.mmap]:
    """Every array of an archive by name, in the archive's order, and the mapped file.

    Those that are not packed are views of it.

    Raises:
        DamagedFileError: the file is missing, no whole archive, packed beyond reason, or holds something else than
            arrays of numbers.
    """
    path = Path(path)
    if (kind := refuse_other(path)) != "zip":
        raise DamagedFileError(f"{path} is no NumPy archive: its first bytes are of the kind {kind}. {_ADVICE}")
    archive = Archive(path)
    names = [name for name in archive.members if not name.endswith("/")]
    if len(names) > ARRAYS:
        raise DamagedFileError(f"{path} holds {len(names)} arrays; at most {ARRAYS} are read. {_ADVICE}")
    if other := [name for name in names if not name.endswith(".npy")]:
        raise DamagedFileError(f"{path} must hold arrays alone. It holds {other[0][:80]}. {_ADVICE}")
    return {name.removesuffix(".npy"): _member(archive, name) for name in names}, archive.memory


def load_npy(path: Path) -> Tensor:
    """The one array of a `.npy` file.

    Raises:
        DamagedFileError: the file is missing, damaged, or holds something else than numbers.
    """
    path = Path(path)
    if (kind := refuse_other(path)) != "npy":
        raise DamagedFileError(f"{path} is no NumPy array: its first bytes are of the kind {kind}. {_ADVICE}")
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    array = _header(memory[:HEADER], len(memory), str(path))
    return _numbers(memory, array.begin, array)


def _member(archive: Archive, name: str) -> Tensor:
    where = f"{archive.path}, {name[:120]}"
    member = archive.member(name)
    if member.is_stored:
        archive.stored(name)
        first = archive.memory[member.offset : member.offset + min(HEADER, member.size)]
        array = _header(first, member.size, where)
        return _numbers(archive.memory, member.offset + array.begin, array)
    array = _header(archive.first(name, HEADER), member.size, where)
    return _numbers(bytearray(archive.read(name, member.size)), array.begin, array)


def _header(data: bytes, size: int, where: str) -> _Array:
    """The header that `data` begins with; the array's bytes must then fill `size` exactly."""
    header = parse_header(data, where)
    dtype = header.dtype
    number = _NUMBERS.get(dtype.str[1:])
    if number is None:
        what = "Python objects, which can run anything" if dtype.hasobject else dtype.str[:40]
        raise DamagedFileError(f"{where}: an array must hold numbers. It holds {what}, so it was not read. {_ADVICE}")
    check_size(header, size, where)
    is_swapped = dtype.byteorder == (">" if np.little_endian else "<")
    return _Array(number, is_swapped, header.shape, header.is_by_columns, header.begin)


def _numbers(memory: mmap.mmap | bytearray, begin: int, array: _Array) -> Tensor:
    count = math.prod(array.shape)
    if not count:
        return torch.empty(array.shape, dtype=array.dtype)
    flat = torch.frombuffer(memory, dtype=array.dtype, count=count, offset=begin)
    if array.is_swapped and array.dtype.itemsize > 1:
        flat = flat.view(torch.uint8).view(count, -1).flip(1).contiguous().view(array.dtype).view(count)
    if array.is_by_columns:
        return flat.view(array.shape[::-1]).permute(*range(len(array.shape))[::-1])
    return flat.view(array.shape)


_ADVICE = "Take a file that was written with numpy.savez from arrays of numbers."
