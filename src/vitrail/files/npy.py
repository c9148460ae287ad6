"""NumPy files: safe reading of datasets and weights with validated headers, and a writer that appends rows.

Uncompressed arrays become views of the memory-mapped file, so that data are read on access; compressed ones must fit
into memory. An array of Python objects is a pickle in disguise and is refused.
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
"""Largest ratio of unpacked to packed bytes, above any ratio of deflate: drawings on white compress a hundredfold."""


class ArrayFile:
    """The arrays of an `.npz` or `.npy` dataset by name; the single array of a `.npy` file has the name "".

    Headers are validated when the file is opened, arrays are read on request.

    Raises:
        DamagedFileError: no such file, not whole, or compressed beyond reason.
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
            with self.path.open("rb") as file:
                self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self.headers = {"": _check_header(self._memory[:MAX_HEADER_BYTES], len(self._memory), str(self.path))}
        else:
            raise DamagedFileError(
                f"{self.path} holds no NumPy arrays: its first bytes are of the kind {kind}. Copy it again, or write "
                "it with numpy.savez or numpy.save."
            )

    def read(self, name: str) -> np.ndarray:
        """An array in native byte order; writing to it does not change the file.

        Raises:
            DamagedFileError: there is none of that name, its checksum does not match, or it holds Python objects.
            ResourceError: it is compressed and larger than the machine's memory.
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
        """The name of an array in messages."""
        return f"{self.path}, {name[:120]}" if name else str(self.path)

    def _read_headers(self, archive: ZipArchive) -> dict[str, ArrayHeader]:
        names = [name for name in archive.members if name.endswith(".npy")]
        if len(names) > MAX_ARRAYS:
            raise DamagedFileError(f"{self.path} holds {len(names)} arrays; at most {MAX_ARRAYS} are read.")
        headers = {}
        for name in names:
            bare = name.removesuffix(".npy")
            headers[bare] = _check_header(
                archive.read_prefix(name, MAX_HEADER_BYTES), archive.member(name).size, self.describe_array(bare)
            )
        return headers

    def _load_buffer(self, name: str, where: str) -> tuple[mmap.mmap | bytearray, int]:
        """A buffer with an array and its header, and the header's first byte."""
        if self._archive is None:
            return self._memory, 0
        member = self._archive.member(f"{name}.npy")
        if member.is_stored:
            return self._archive.memory, self._archive.verify_uncompressed(member.name).offset
        self._unpacked_bytes += member.size
        size, memory = self._unpacked_bytes + member.size, machine_memory()  # this one is in memory twice during a copy
        if memory is not None and size > memory:
            raise ResourceError(
                f"Unpacking {where} takes {size / 2**30:,.1f} GiB, too much for a machine with {memory / 2**30:,.1f} "
                "GiB of memory. Write it with numpy.savez instead of savez_compressed: then it is read where it lies."
            )
        return bytearray(self._archive.read(member.name, member.size)), 0


def is_readable_header(header: ArrayHeader) -> bool:
    """Whether an array holds numbers or text, and no Python objects."""
    return header.dtype.kind in "biufSU" and not header.dtype.hasobject


def _check_header(data: bytes, size: int, where: str) -> ArrayHeader:
    header = parse_array_header(data, where)
    if is_readable_header(header):
        check_array_size(header, size, where)
    elif not all(0 <= length < 2**63 for length in header.shape):
        raise damaged_array_error(where, "its shape is no list of counts")
    return header


# -- Weights in `.npz` archives, as tensors.

MAX_ARRAYS = 4_000
"""Most arrays of an archive, also of a dataset."""
_TORCH_DTYPES = {
    "f8": torch.float64,
    "f4": torch.float32,
    "f2": torch.float16,
    "V2": torch.bfloat16,  # NumPy has no bfloat16 and writes it as two raw bytes, as in JAX's files
    "i8": torch.int64,
    "i4": torch.int32,
    "i2": torch.int16,
    "i1": torch.int8,
    "u1": torch.uint8,
    "b1": torch.bool,
}


def open_npz(path: Path) -> tuple[dict[str, Tensor], mmap.mmap]:
    """Every array of an archive by name, in the archive's order, and the mapped file that uncompressed ones view.

    Raises:
        DamagedFileError: the file is missing, no whole archive, compressed beyond reason, or holds anything but
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
    return {name.removesuffix(".npy"): _read_tensor(archive, name) for name in names}, archive.memory


def read_npz_comment(path: Path) -> bytes:
    """What the writer of an archive noted beside its first array, where no reader of NumPy files looks; b"" if nothing.

    Raises:
        DamagedFileError: the file is no whole archive.
    """
    return ZipArchive(path).comment if detect_kind(path) == "zip" else b""


def _read_tensor(archive: ZipArchive, name: str) -> Tensor:
    """An array of an archive as a tensor; a compressed one is unpacked only after its header was validated."""
    where = f"{archive.path}, {name[:120]}"
    member = archive.member(name)
    begin = archive.verify_uncompressed(name).offset if member.is_stored else 0
    header = parse_array_header(archive.read_prefix(name, MAX_HEADER_BYTES), where)
    dtype = _TORCH_DTYPES.get(header.dtype.str[1:])
    if dtype is None:
        what = "Python objects, which can run anything" if header.dtype.hasobject else header.dtype.str[:40]
        raise DamagedFileError(
            f"{where}: an array must hold numbers. It holds {what}, so it was not read. {_NPY_ADVICE}"
        )
    check_array_size(header, member.size, where)
    memory = archive.memory if member.is_stored else bytearray(archive.read(name, member.size))
    count = math.prod(header.shape)
    if not count:
        return torch.empty(header.shape, dtype=dtype)
    flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=begin + header.header_size)
    if not header.dtype.isnative:
        flat = flat.view(torch.uint8).view(count, -1).flip(1).contiguous().view(dtype).view(count)
    if header.is_fortran_order:
        return flat.view(header.shape[::-1]).permute(*range(len(header.shape))[::-1])
    return flat.view(header.shape)


_NPY_ADVICE = "Take a file that was written with numpy.savez from arrays of numbers."


# -- A `.npy` file that grows while it is written; the number of rows is written into the header at the end.


class NpyWriter:
    """An open `.npy` file to which rows are appended."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.shape: tuple[int, ...] = ()
        """Shape of all rows so far; empty before the first."""
        self._dtype = np.dtype(np.float32)
        self._data_offset = 0

    def write_rows(self, rows: Shaped[np.ndarray, " n *D"]) -> None:
        """Append rows.

        Raises:
            UsageError: rows of another shape or dtype than the first ones.
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
        """Write the number of rows into the header, which has room for it."""
        self._file.seek(0)
        self._write_header()
        assert self._file.tell() == self._data_offset, "numpy leaves room in its headers for a first axis that grows"

    def _write_header(self) -> None:
        fields = {"shape": self.shape, "fortran_order": False, "descr": npy.dtype_to_descr(self._dtype)}
        npy.write_array_header_1_0(self._file, fields)


@contextmanager
def open_npy_writer(path: Path) -> Iterator[NpyWriter]:
    """Yield a writer of a `.npy` file, which appears atomically on exit.

    Raises:
        UsageError: nothing was written.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    with atomic.write_file(path) as file:
        writer = NpyWriter(file)
        yield writer
        if not writer.shape:
            raise UsageError(f"{path} would hold no rows, so it was not written.")
        writer.finish()


# -- Headers of arrays, validated before data are read or memory is allocated.

MAX_HEADER_BYTES = 64 * 2**10
"""Bytes within which an array's header must end."""
MAX_HEADER_TEXT = 2**10
"""Longest text of a header, which NumPy parses as Python; three axes take 120 characters."""


class ArrayHeader(NamedTuple):
    """The header of an array."""

    dtype: np.dtype
    shape: tuple[int, ...]
    is_fortran_order: bool
    header_size: int
    """Its length in bytes."""


def parse_array_header(data: bytes, where: str) -> ArrayHeader:
    """Parse the header at the beginning of `data`.

    Raises:
        DamagedFileError: there is none.
    """
    file = io.BytesIO(data)
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, is_fortran_order, dtype = read(file, max_header_size=MAX_HEADER_TEXT)
    except Exception as error:  # NumPy's parser can raise anything
        reason = " ".join(str(error).split())[:80]
        raise damaged_array_error(where, f"its header cannot be read, {type(error).__name__}: {reason}") from error
    return ArrayHeader(dtype, tuple(shape), bool(is_fortran_order), file.tell())


def check_array_size(header: ArrayHeader, size: int, where: str) -> None:
    """Check that header and array fill `size` bytes exactly.

    Raises:
        DamagedFileError: they do not, or the shape is invalid.
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
