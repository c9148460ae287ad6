"""Files of features, written batch by batch: `.npy` with a table of names beside it, or `.parquet`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from ..data.csv_injection import escape_cell, format_csv_lines
from ..errors import UsageError
from ..evaluate.tables import require_pyarrow, to_valid_utf8
from ..files import atomic
from ..files.npy import NpyWriter, open_npy_writer
from ..predict.embedder import Embeddings

ARRAY, TABLE, NAMES = ".npy", ".parquet", ".csv"
BESIDE = ("row", "path", "id")
ROW_GROUP = 2**24
"""Bytes of features that are written to a Parquet file at once."""


class Writer(Protocol):
    """Where features go."""

    def add(self, part: Embeddings) -> None:
        """Write one batch, of at least one picture."""
        ...


def writing(path: Path) -> AbstractContextManager[Writer]:
    """A file that takes features batch by batch; it is there when all have come, whole or not at all.

    `.npy`: one array [n, ...], and beside it a table of the same name in `.csv`: row, path, id.
    `.parquet`: path, id and features, one row a picture; features of patches lie flat, and `shape` in the metadata of
    the file says their rows, columns and numbers.

    Raises:
        UsageError: as `check_place`, or no picture came.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    check_place(path)
    return _table(path) if path.suffix.lower() == TABLE else _array(path)


def check_place(path: Path) -> None:
    """Refuse a file whose name says no format of features, or one that cannot be written here.

    Raises:
        UsageError: neither .npy nor .parquet, pyarrow is not installed, or where the table beside an array would be
            lies another file, such as somebody's manifest.
    """
    if path.suffix.lower() not in (ARRAY, TABLE):
        raise UsageError(f"--to writes features to a file whose name ends in {ARRAY} or {TABLE}. Got {path}.")
    if path.suffix.lower() == TABLE:
        require_pyarrow()
    beside = path.with_suffix(NAMES)
    if path.suffix.lower() == ARRAY and beside.exists() and not _is_ours(beside):
        raise UsageError(
            f"{beside} is no table of features, and the rows of {path.name} would be named in a file of that name. "
            f"Nothing was written: give --to another name, such as {path.stem}-features{ARRAY}."
        )


def _is_ours(path: Path) -> bool:
    """Whether a file begins as the table beside an array does, so that it may be written anew."""
    first = "".join(format_csv_lines([BESIDE])).encode()
    with path.open("rb") as file:
        return file.read(len(first)) == first


@contextmanager
def _array(path: Path) -> Iterator[Writer]:
    with open_npy_writer(path) as rows:
        array = _Array(rows)
        yield array
        atomic.write_bytes(path.with_suffix(NAMES), array.names())


class _Array:
    """Features into an array, and the names of its rows."""

    def __init__(self, rows: NpyWriter):
        self._rows = rows
        self._names: list[tuple[str, str]] = []

    def add(self, part: Embeddings) -> None:
        """As `Writer`."""
        self._rows.add(part.vectors)
        self._names += zip(part.paths, part.ids, strict=True)

    def names(self) -> bytes:
        """The table beside the array."""
        cells = ((str(row), escape_cell(path), escape_cell(id)) for row, (path, id) in enumerate(self._names))
        return "".join(format_csv_lines([BESIDE, *cells])).encode("utf-8", "surrogateescape")


@contextmanager
def _table(path: Path) -> Iterator[Writer]:
    with atomic.write_file(path) as opened:
        table = _Table(opened)
        try:
            yield table
        finally:
            table.close()
        if not table.rows:
            raise UsageError(f"{path} would hold no rows, so it was not written.")


class _Table:
    """Features into a Parquet file, in row groups of some size."""

    def __init__(self, file: BinaryIO):
        self.rows = 0
        self._file = file
        self._writer: Any = None
        self._waiting: list[Embeddings] = []

    def add(self, part: Embeddings) -> None:
        """As `Writer`."""
        self.rows += len(part)
        self._waiting.append(part)
        if sum(each.vectors.nbytes for each in self._waiting) >= ROW_GROUP:
            self._write()

    def close(self) -> None:
        """Write what waits, and the end of the file."""
        if self._waiting:
            self._write()
        if self._writer is not None:
            self._writer.close()

    def _write(self) -> None:
        import pyarrow
        import pyarrow.parquet

        vectors = np.concatenate([part.vectors for part in self._waiting])
        flat = vectors.reshape(len(vectors), -1)
        kind = pyarrow.list_(pyarrow.float32(), flat.shape[1])
        shape = {"shape": ",".join(map(str, vectors.shape[1:]))}
        names = [("path", pyarrow.string()), ("id", pyarrow.string()), ("features", kind)]
        schema = pyarrow.schema(names, metadata=shape)
        if self._writer is None:
            self._writer = pyarrow.parquet.ParquetWriter(self._file, schema)
        paths = [to_valid_utf8(path) for part in self._waiting for path in part.paths]
        ids = [to_valid_utf8(id) for part in self._waiting for id in part.ids]
        features = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(flat.reshape(-1)), flat.shape[1])
        self._writer.write_table(pyarrow.table([paths, ids, features], schema=schema))
        self._waiting = []
