"""Files inside tar shards as pictures: where each lies is kept in arrays, and it is read in place when asked for.

Any order is as good as any other, several threads, processes and ranks read at once, and a resumed run goes on exactly
where it stopped, because nothing is a stream. A shard is opened for every read: that costs 0.03 ms, a few hundredths of
decoding what is read, and leaves no open files behind in workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, overload

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError

LIMIT = 512 * 2**20
"""Bytes of the largest member that is read, as of a picture in a file of its own."""


@dataclass(frozen=True)
class Shard:
    """A tar file as it was when it was indexed."""

    path: Path
    size: int
    changed: int
    """Nanoseconds since 1970."""

    @classmethod
    def at(cls, path: Path) -> Shard:
        """Raises DataError: nothing can be read there."""
        try:
            info = os.stat(path)
        except OSError as error:
            raise DataError(f"{path} cannot be read ({(error.strerror or str(error)).lower()}).") from error
        return cls(path, info.st_size, info.st_mtime_ns)

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """The shard's bytes.

        Raises:
            DataError: it is gone, or no longer what was indexed, so that its pictures may lie elsewhere.
        """
        try:
            with self.path.open("rb") as file:
                info = os.fstat(file.fileno())
                if (info.st_size, info.st_mtime_ns) != (self.size, self.changed):
                    raise DataError(f"{self.path} was changed while it was in use. Start again to have it indexed.")
                yield file
        except OSError as error:
            raise DataError(f"{self.path} cannot be read ({(error.strerror or str(error)).lower()}).") from error


@dataclass(frozen=True)
class Member:
    """One picture of a shard."""

    shard: Shard
    offset: int
    size: int
    name: str
    """The shard's path, then its own name there."""

    @property
    def stamp(self) -> str:
        """Shard, place and size: what changes when the shard is written anew."""
        return f"{self.shard.path.name} {self.offset} {self.size}"

    def fetch(self) -> bytes:
        """The picture's bytes.

        Raises:
            DataError: larger than 512 MiB, or the shard is gone or has changed.
        """
        with self.shard.opened() as file:
            return _part(file, self.offset, self.size, self.name)


class Members(Sequence[Member]):
    """Many pictures of shards: a few bytes each, until one is asked for.

    Args:
        numbers: int64 [n], which of the shards each lies in.
        offsets, sizes: int64 [n], in bytes.
        ids: shard and key of each, relative to `root`.
        suffix: int32 [n], which of `suffixes` each ends in.
    """

    def __init__(
        self,
        root: str,
        shards: Sequence[Shard],
        numbers: NDArray[np.int64],
        offsets: NDArray[np.int64],
        sizes: NDArray[np.int64],
        ids: Sequence[str],
        suffixes: Sequence[str],
        suffix: NDArray[np.int32],
    ):
        self._root = root
        self._shards = tuple(shards)
        self._numbers, self._offsets, self._sizes = numbers, offsets, sizes
        self._ids = ids
        self._suffixes = tuple(suffixes)
        self._suffix = suffix

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, index: int) -> Member: ...
    @overload
    def __getitem__(self, index: slice) -> list[Member]: ...
    def __getitem__(self, index: int | slice) -> Member | list[Member]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = range(len(self))[index]  # negative ones count from the end, and one beyond raises IndexError
        name = os.path.join(self._root, f"{self._ids[row]}.{self._suffixes[self._suffix[row]]}")
        return Member(self._shards[self._numbers[row]], int(self._offsets[row]), int(self._sizes[row]), name)


def contents(
    shards: Sequence[Shard], numbers: NDArray[np.int64], offsets: NDArray[np.int64], sizes: NDArray[np.int64]
) -> Iterator[bytes]:
    """What many small files hold, one shard open at a time; nothing at all where the offset is negative.

    Args:
        numbers: int64 [n], rising: the shard of each.

    Raises:
        DataError: a shard is gone or has changed.
    """
    places = zip(numbers.tolist(), offsets.tolist(), sizes.tolist(), strict=True)
    for number, files in groupby(places, key=lambda place: place[0]):
        with shards[number].opened() as shard:
            for _, offset, size in files:
                yield _part(shard, offset, size, str(shards[number].path)) if offset >= 0 else b""


def _part(file: BinaryIO, offset: int, size: int, name: str) -> bytes:
    if size > LIMIT:
        raise DataError(f"{name}: file is {size / 2**20:,.0f} MiB, limit {LIMIT // 2**20} MiB.")
    file.seek(offset)
    found = file.read(size)
    if len(found) < size:
        raise DataError(f"{name}: the shard ends after {len(found):,} of its {size:,} bytes.")
    return found
