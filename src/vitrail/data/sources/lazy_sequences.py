"""Lazy sequences that take no memory: numbered names, concatenations, selected rows, images fetched on demand."""

from __future__ import annotations

import threading
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from ...errors import DataError
from .image_input import load_image_input

Item_co = TypeVar("Item_co", covariant=True)


class LazySequence(Sequence[Item_co]):
    """A sequence whose items are made when they are read; a slice is a list."""

    @abstractmethod
    def get_row(self, row: int) -> Item_co:
        """The item of one row, 0 to len(self) - 1."""

    @overload
    def __getitem__(self, index: int) -> Item_co: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item_co]: ...
    def __getitem__(self, index: int | slice) -> Item_co | list[Item_co]:
        if isinstance(index, slice):
            return [self.get_row(row) for row in range(*index.indices(len(self)))]
        return self.get_row(range(len(self))[index])


class ConcatSequence(LazySequence[Item_co]):
    """A concatenation of sequences and arrays, without a copy."""

    def __init__(self, parts: Sequence[Any]):
        self._parts = parts
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def get_row(self, row: int) -> Item_co:
        number = bisect_right(self._ends, row)
        return self._parts[number][row - (self._ends[number - 1] if number else 0)]


class SubsetSequence(LazySequence[Item_co]):
    """Selected rows of a sequence, without a copy."""

    def __init__(self, whole: Any, rows: NDArray[np.int64]):
        self._whole = whole
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def get_row(self, row: int) -> Item_co:
        return self._whole[int(self._rows[row])]


class NumberedNames(LazySequence[str]):
    """The names train/000000, train/000001, ... of the rows of one split; without a split, the numbers alone."""

    def __init__(self, split: str, count: int):
        self._before = f"{split}/" if split else ""
        self._count = count

    def __len__(self) -> int:
        return self._count

    def get_row(self, row: int) -> str:
        return f"{self._before}{row:06d}"


@dataclass(frozen=True)
class DeferredImage:
    """An image of a user's object, fetched on demand."""

    name: str
    stamp: str
    get: Callable[[], object]

    def fetch(self) -> bytes | np.ndarray:
        """The encoded bytes, or the values with channels last.

        Raises:
            DataError: the object raises an error, or returns something that is not an image.
        """
        try:
            return load_image_input(self.get(), self.name)
        except DataError:
            raise
        except Exception as error:  # user code can raise anything
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{self.name}: cannot be read ({type(error).__name__}: {reason}).") from error


class DeferredImages(LazySequence[DeferredImage]):
    """Images of a user's object, one per row.

    Args:
        names: names of the rows in messages.
        stamp: a text that changes when a row's image does, known without fetching it.
        get: returns a row's image, as a path, bytes, array, tensor or Pillow image.
        serialize: `get` runs user code, which may not be thread-safe.
    """

    def __init__(
        self,
        names: Sequence[str],
        stamp: Callable[[int], str],
        get: Callable[[int], object],
        serialize: bool = False,
    ):
        self._names = names
        self._stamp = stamp
        self._get = get
        self._lock = threading.Lock() if serialize else None

    def __len__(self) -> int:
        return len(self._names)

    def get_row(self, row: int) -> DeferredImage:
        return DeferredImage(self._names[row], self._stamp(row), partial(self._fetch_row, row))

    def _fetch_row(self, row: int) -> object:
        if self._lock is None:
            return self._get(row)
        with self._lock:
            image = self._get(row)
            if isinstance(image, Image):
                image.load()  # Pillow loads lazily, and two threads must not load one image
            return image
