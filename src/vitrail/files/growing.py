"""A `.npy` file that grows while it is written: the number of its rows is put into the header at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import Shaped

from ..errors import UsageError
from . import atomic


class Rows:
    """An open `.npy` file that rows are added to."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.shape: tuple[int, ...] = ()
        """Of all rows so far; empty before the first."""
        self._kind = np.dtype(np.float32)
        self._begins = 0

    def add(self, rows: Shaped[np.ndarray, " n *D"]) -> None:
        """Write more rows behind the others.

        Raises:
            UsageError: rows of another shape or type than the first ones.
        """
        if not self.shape:
            self.shape, self._kind = (0, *rows.shape[1:]), rows.dtype
            self._head()
            self._begins = self._file.tell()
        if (rows.shape[1:], rows.dtype) != (self.shape[1:], self._kind):
            raise UsageError(
                f"All rows of a file must be {self._kind} {list(self.shape[1:])}. "
                f"Got {rows.dtype} {list(rows.shape[1:])}."
            )
        self._file.write(np.ascontiguousarray(rows).tobytes())
        self.shape = (self.shape[0] + len(rows), *self.shape[1:])

    def end(self) -> None:
        """Put the number of rows into the header, which has room for it."""
        self._file.seek(0)
        self._head()
        assert self._file.tell() == self._begins, "numpy leaves room in its headers for a first axis that grows"

    def _head(self) -> None:
        described = {"shape": self.shape, "fortran_order": False, "descr": np.lib.format.dtype_to_descr(self._kind)}
        np.lib.format.write_array_header_1_0(self._file, described)


@contextmanager
def rows_of(path: Path) -> Iterator[Rows]:
    """A `.npy` file to add rows to; it is there when all of them are, whole or not at all.

    Raises:
        UsageError: nothing was added.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    with atomic.file(path) as opened:
        rows = Rows(opened)
        yield rows
        if not rows.shape:
            raise UsageError(f"{path} would hold no rows, so it was not written.")
        rows.end()
