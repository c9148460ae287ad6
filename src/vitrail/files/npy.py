"""Data sets in NumPy's files: every header is judged when the file is opened, an array is read when it is asked for.

Beside numbers there may be texts (class names). What lies unpacked in the file becomes a view of it, mapped, so that
pictures are read when they are used; what is packed must fit into the machine's memory.
"""

from __future__ import annotations

import io
import math
import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from jaxtyping import Shaped
from numpy.lib import format as npy
from torch import Tensor

from ..errors import DamagedFileError, ResourceError, UsageError
from . import atomic
from .memory import machine_memory
from .sniff import detect_kind, require_weights_kind
from .zip_archive import ZipArchive

MAX_DATASET_EXPANSION = 2_000
"""Unpacked bytes for every packed one: more than deflate can pack, for drawings on white shrink a hundredfold and more.
What is read must fit into the machine's memory."""
READABLE_KINDS = "biufSU"
"""Kinds of values that are read: truth values, whole numbers, fractions, and texts of two kinds."""


class ArrayFile:
    """The arrays of one `.npz` or `.npy` file by name; the single array of a `.npy` file has the name "".

    Raises:
        DamagedFileError: no such file, not whole, or packed beyond reason.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self._unpacked_bytes = 0
        kind = detect_kind(self.path)
        self._archive: ZipArchive | None = None
        if kind == "zip":
            self._archive = archive = ZipArchive(self.path, MAX_DATASET_EXPANSION)
            self.headers: Mapping[str, ArrayHeader] = self._read_headers(archive)
        elif kind == "npy":
            self._memory = self._map_file()
            self.headers = {"": _check_header(self._memory[:MAX_HEADER_BYTES], len(self._memory), str(self.path))}
        else:
            raise DamagedFileError(
                f"{self.path} holds no NumPy arrays: its first bytes are of the kind {kind}. Copy it again, or write "
                "it with numpy.savez or numpy.save."
            )

    def read(self, name: str) -> np.ndarray:
        """One array, in this machine's byte order; writing to it does not change the file.

        Raises:
            DamagedFileError: there is none of that name, its checksum does not match, or it holds Python objects.
            ResourceError: it is packed and larger than the machine's memory.
        """
        where = self.describe_array(name)
        if name not in self.headers:
            raise DamagedFileError(f"{where} is missing. There are: {', '.join(self.headers)[:200]}.")
        header = self.headers[name]
        if not is_readable_header(header):
            what = "Python objects, which can run anything" if header.dtype.hasobject else header.dtype.str[:40]
            raise DamagedFileError(f"{where} must hold numbers or texts. It holds {what}, so it was not read.")
        if not header.dtype.itemsize or not math.prod(header.shape):
            return np.empty(header.shape, header.dtype.newbyteorder("="))
        buffer, begin = self._load_buffer(name, where)
        flat = np.frombuffer(buffer, header.dtype, math.prod(header.shape), begin + header.header_size)
        array = flat.reshape(header.shape, order="F" if header.is_fortran_order else "C")
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))

    def describe_array(self, name: str) -> str:
        """What messages call an array."""
        return f"{self.path}, {name[:120]}" if name else str(self.path)

    def _map_file(self) -> mmap.mmap:
        with self.path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def _read_headers(self, archive: ZipArchive) -> dict[str, ArrayHeader]:
        names = [name for name in archive.members if name.endswith(".npy")]
        if len(names) > MAX_ARRAYS:
            raise DamagedFileError(f"{self.path} holds {len(names)} arrays; at most {MAX_ARRAYS} are read.")
        found = {}
        for name in names:
            bare = name.removesuffix(".npy")
            found[bare] = _check_header(
                archive.read_prefix(name, MAX_HEADER_BYTES), archive.member(name).size, self.describe_array(bare)
            )
        return found

    def _load_buffer(self, name: str, where: str) -> tuple[mmap.mmap | bytearray, int]:
        """The bytes that hold an array with its header, and where they begin in the buffer."""
        if self._archive is None:
            return self._memory, 0
        member = self._archive.member(f"{name}.npy")
        if member.is_stored:
            return self._archive.memory, self._archive.verify_uncompressed(member.name).offset
        self._unpacked_bytes += member.size
        _check_memory(self._unpacked_bytes + member.size, where)  # the last one is there twice while it is copied
        return bytearray(self._archive.read(member.name, member.size)), 0


def is_readable_header(header: ArrayHeader) -> bool:
    """Whether an array holds numbers or texts, and nothing that could run."""
    return header.dtype.kind in READABLE_KINDS and not header.dtype.hasobject


def _check_header(data: bytes, size: int, where: str) -> ArrayHeader:
    header = parse_array_header(data, where)
    if is_readable_header(header):
        check_array_size(header, size, where)
    elif not all(0 <= length < 2**63 for length in header.shape):
        raise damaged_array_error(where, "its shape is no list of counts")
    return header


def _check_memory(size: int, where: str) -> None:
    memory = machine_memory()
    if memory is not None and size > memory:
        raise ResourceError(
            f"Unpacking {where} takes {size / 2**30:,.1f} GiB, too much for a machine with {memory / 2**30:,.1f} GiB "
            "of memory. Write it with numpy.savez instead of savez_compressed: then it is read where it lies."
        )


# NumPy's files, `.npz` and `.npy`: numbers only, and each array's size is compared with its header before it is read.
#
# An array of Python objects is a pickle in disguise and is refused by its number format. Arrays that lie unpacked in
# the archive become views of the file, which is mapped, so that numbers are read when they are used.

MAX_ARRAYS = 4_000
"""Arrays of the largest archive that is read."""
_TORCH_DTYPES = {
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


class _TensorHeader(NamedTuple):
    """What an array's header says."""

    dtype: torch.dtype
    is_swapped: bool
    """Whether its bytes are in the other order than this machine's."""
    shape: tuple[int, ...]
    is_fortran_order: bool
    header_size: int
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
    if (kind := require_weights_kind(path)) != "zip":
        raise DamagedFileError(f"{path} is no NumPy archive: its first bytes are of the kind {kind}. {_NPY_ADVICE}")
    archive = ZipArchive(path)
    names = [name for name in archive.members if not name.endswith("/")]
    if len(names) > MAX_ARRAYS:
        raise DamagedFileError(f"{path} holds {len(names)} arrays; at most {MAX_ARRAYS} are read. {_NPY_ADVICE}")
    if other := [name for name in names if not name.endswith(".npy")]:
        raise DamagedFileError(f"{path} must hold arrays alone. It holds {other[0][:80]}. {_NPY_ADVICE}")
    return {name.removesuffix(".npy"): _read_member(archive, name) for name in names}, archive.memory


def load_npy(path: Path) -> Tensor:
    """The one array of a `.npy` file.

    Raises:
        DamagedFileError: the file is missing, damaged, or holds something else than numbers.
    """
    path = Path(path)
    if (kind := require_weights_kind(path)) != "npy":
        raise DamagedFileError(f"{path} is no NumPy array: its first bytes are of the kind {kind}. {_NPY_ADVICE}")
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    array = _read_tensor_header(memory[:MAX_HEADER_BYTES], len(memory), str(path))
    return _read_tensor(memory, array.header_size, array)


def _read_member(archive: ZipArchive, name: str) -> Tensor:
    where = f"{archive.path}, {name[:120]}"
    member = archive.member(name)
    if member.is_stored:
        archive.verify_uncompressed(name)
        first = archive.memory[member.offset : member.offset + min(MAX_HEADER_BYTES, member.size)]
        array = _read_tensor_header(first, member.size, where)
        return _read_tensor(archive.memory, member.offset + array.header_size, array)
    array = _read_tensor_header(archive.read_prefix(name, MAX_HEADER_BYTES), member.size, where)
    return _read_tensor(bytearray(archive.read(name, member.size)), array.header_size, array)


def _read_tensor_header(data: bytes, size: int, where: str) -> _TensorHeader:
    """The header that `data` begins with; the array's bytes must then fill `size` exactly."""
    header = parse_array_header(data, where)
    dtype = header.dtype
    number = _TORCH_DTYPES.get(dtype.str[1:])
    if number is None:
        what = "Python objects, which can run anything" if dtype.hasobject else dtype.str[:40]
        raise DamagedFileError(
            f"{where}: an array must hold numbers. It holds {what}, so it was not read. {_NPY_ADVICE}"
        )
    check_array_size(header, size, where)
    is_swapped = dtype.byteorder == (">" if np.little_endian else "<")
    return _TensorHeader(number, is_swapped, header.shape, header.is_fortran_order, header.header_size)


def _read_tensor(memory: mmap.mmap | bytearray, begin: int, array: _TensorHeader) -> Tensor:
    count = math.prod(array.shape)
    if not count:
        return torch.empty(array.shape, dtype=array.dtype)
    flat = torch.frombuffer(memory, dtype=array.dtype, count=count, offset=begin)
    if array.is_swapped and array.dtype.itemsize > 1:
        flat = flat.view(torch.uint8).view(count, -1).flip(1).contiguous().view(array.dtype).view(count)
    if array.is_fortran_order:
        return flat.view(array.shape[::-1]).permute(*range(len(array.shape))[::-1])
    return flat.view(array.shape)


_NPY_ADVICE = "Take a file that was written with numpy.savez from arrays of numbers."


# A `.npy` file that grows while it is written: the number of its rows is put into the header at the end.


class NpyWriter:
    """An open `.npy` file that rows are added to."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.shape: tuple[int, ...] = ()
        """Of all rows so far; empty before the first."""
        self._dtype = np.dtype(np.float32)
        self._data_offset = 0

    def write_rows(self, rows: Shaped[np.ndarray, " n *D"]) -> None:
        """Write more rows behind the others.

        Raises:
            UsageError: rows of another shape or type than the first ones.
        """
        if not self.shape:
            self.shape, self._dtype = (0, *rows.shape[1:]), rows.dtype
            self._write_header()
            self._data_offset = self._file.tell()
        if (rows.shape[1:], rows.dtype) != (self.shape[1:], self._dtype):
            raise UsageError(
                f"All rows of a file must be {self._dtype} {list(self.shape[1:])}. "
                f"Got {rows.dtype} {list(rows.shape[1:])}."
            )
        self._file.write(np.ascontiguousarray(rows).tobytes())
        self.shape = (self.shape[0] + len(rows), *self.shape[1:])

    def finish(self) -> None:
        """Put the number of rows into the header, which has room for it."""
        self._file.seek(0)
        self._write_header()
        assert self._file.tell() == self._data_offset, "numpy leaves room in its headers for a first axis that grows"

    def _write_header(self) -> None:
        described = {"shape": self.shape, "fortran_order": False, "descr": np.lib.format.dtype_to_descr(self._dtype)}
        np.lib.format.write_array_header_1_0(self._file, described)


@contextmanager
def open_npy_writer(path: Path) -> Iterator[NpyWriter]:
    """A `.npy` file to add rows to; it is there when all of them are, whole or not at all.

    Raises:
        UsageError: nothing was added.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    with atomic.write_file(path) as opened:
        rows = NpyWriter(opened)
        yield rows
        if not rows.shape:
            raise UsageError(f"{path} would hold no rows, so it was not written.")
        rows.finish()


# What the header of a NumPy array says, judged before a byte of the array is read or any memory taken for it.

MAX_HEADER_BYTES = 64 * 2**10
"""Bytes within which an array's header must end."""
MAX_HEADER_TEXT = 2**10
"""Letters of the header itself, which NumPy parses as Python text; three axes take 120."""


class ArrayHeader(NamedTuple):
    """What an array's header says."""

    dtype: np.dtype
    shape: tuple[int, ...]
    is_fortran_order: bool
    header_size: int
    """Bytes of the header."""


def parse_array_header(data: bytes, where: str) -> ArrayHeader:
    """The header that `data` begins with.

    Raises:
        DamagedFileError: there is none.
    """
    file = io.BytesIO(data)
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, by_columns, dtype = read(file, max_header_size=MAX_HEADER_TEXT)
    except Exception as error:  # NumPy's parser can raise anything
        said = " ".join(str(error).split())[:80]
        raise damaged_array_error(where, f"its header cannot be read, {type(error).__name__}: {said}") from error
    return ArrayHeader(dtype, tuple(shape), bool(by_columns), file.tell())


def check_array_size(header: ArrayHeader, size: int, where: str) -> None:
    """Header and array must fill `size` bytes exactly.

    Raises:
        DamagedFileError: they do not, or the shape is none.
    """
    shape = header.shape
    if not all(0 <= length < 2**63 for length in shape) or len(shape) > 32:
        raise damaged_array_error(where, "its shape is no list of counts")
    if not math.prod(shape) and math.prod(max(length, 1) for length in shape) >= 2**60:
        raise damaged_array_error(where, f"no array can have the shape {list(shape)}")
    needed = math.prod(shape) * header.dtype.itemsize
    if needed != size - header.header_size:
        raise damaged_array_error(
            where, f"its shape {list(shape)} takes {needed} bytes, {size - header.header_size} are there"
        )


def damaged_array_error(where: str, reason: str) -> DamagedFileError:
    """The error for an array that is not whole."""
    return DamagedFileError(f"{where} is not a whole array ({reason}). It is cut short or changed: copy it again.")
