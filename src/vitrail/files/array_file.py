"""Data sets in NumPy's files: every header is judged when the file is opened, an array is read when it is asked for.

Beside numbers there may be texts (class names). What lies unpacked in the file becomes a view of it, mapped, so that
pictures are read when they are used; what is packed must fit into the machine's memory.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..errors import DamagedFileError, ResourceError
from .archive import Archive
from .array_headers import HEADER, Header, check_size, damaged, parse_header
from .arrays import ARRAYS
from .kinds import kind_of
from .mapped import machine_memory

GROWTH = 2_000
"""Unpacked bytes for every packed one: more than deflate can pack, for drawings on white shrink a hundredfold and more.
What is read must fit into the machine's memory."""
READ = "biufSU"
"""Kinds of values that are read: truth values, whole numbers, fractions, and texts of two kinds."""


class ArrayFile:
    """The arrays of one `.npz` or `.npy` file by name; the single array of a `.npy` file has the name "".

    Raises:
        DamagedFileError: no such file, not whole, or packed beyond reason.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self._unpacked = 0
        kind = kind_of(self.path)
        self._archive: Archive | None = None
        if kind == "zip":
            self._archive = archive = Archive(self.path, GROWTH)
            self.headers: Mapping[str, Header] = self._headers(archive)
        elif kind == "npy":
            self._memory = self._mapped()
            self.headers = {"": _judged(self._memory[:HEADER], len(self._memory), str(self.path))}
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
        where = self.where(name)
        if name not in self.headers:
            raise DamagedFileError(f"{where} is missing. There are: {', '.join(self.headers)[:200]}.")
        header = self.headers[name]
        if not is_readable(header):
            what = "Python objects, which can run anything" if header.dtype.hasobject else header.dtype.str[:40]
            raise DamagedFileError(f"{where} must hold numbers or texts. It holds {what}, so it was not read.")
        if not header.dtype.itemsize or not math.prod(header.shape):
            return np.empty(header.shape, header.dtype.newbyteorder("="))
        buffer, begin = self._buffer(name, where)
        flat = np.frombuffer(buffer, header.dtype, math.prod(header.shape), begin + header.begin)
        array = flat.reshape(header.shape, order="F" if header.is_by_columns else "C")
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))

    def where(self, name: str) -> str:
        """What messages call an array."""
        return f"{self.path}, {name[:120]}" if name else str(self.path)

    def _mapped(self) -> mmap.mmap:
        with self.path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def _headers(self, archive: Archive) -> dict[str, Header]:
        names = [name for name in archive.members if name.endswith(".npy")]
        if len(names) > ARRAYS:
            raise DamagedFileError(f"{self.path} holds {len(names)} arrays; at most {ARRAYS} are read.")
        found = {}
        for name in names:
            bare = name.removesuffix(".npy")
            found[bare] = _judged(archive.first(name, HEADER), archive.member(name).size, self.where(bare))
        return found

    def _buffer(self, name: str, where: str) -> tuple[mmap.mmap | bytearray, int]:
        """The bytes that hold an array with its header, and where they begin in the buffer."""
        if self._archive is None:
            return self._memory, 0
        member = self._archive.member(f"{name}.npy")
        if member.is_stored:
            return self._archive.memory, self._archive.stored(member.name).offset
        self._unpacked += member.size
        _check_memory(self._unpacked + member.size, where)  # the last one is there twice while it is copied
        return bytearray(self._archive.read(member.name, member.size)), 0


def is_readable(header: Header) -> bool:
    """Whether an array holds numbers or texts, and nothing that could run."""
    return header.dtype.kind in READ and not header.dtype.hasobject


def _judged(data: bytes, size: int, where: str) -> Header:
    header = parse_header(data, where)
    if is_readable(header):
        check_size(header, size, where)
    elif not all(0 <= length < 2**63 for length in header.shape):
        raise damaged(where, "its shape is no list of counts")
    return header


def _check_memory(size: int, where: str) -> None:
    memory = machine_memory()
    if memory is not None and size > memory:
        raise ResourceError(
            f"Unpacking {where} takes {size / 2**30:,.1f} GiB, too much for a machine with {memory / 2**30:,.1f} GiB "
            "of memory. Write it with numpy.savez instead of savez_compressed: then it is read where it lies."
        )
