"""A manifest as columns, whatever file it is in: which reader takes it, and how messages name a row of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ..labels.coded import Cell, Growing

PIECE = 2**16
"""Rows that are read before they are packed."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns of equal length by their names."""

    name: str
    """The file's name, for messages."""
    columns: Mapping[str, Sequence[Cell]]
    lines: NDArray[np.int64]
    """Where each row begins in the file, counted from 1."""
    unit: str = "line"
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, row: int) -> str:
        """A row as a person finds it: "films.csv, line 17"."""
        return f"{self.name}, {self.unit} {int(self.lines[row])}"


def read_table(path: Path) -> Table:
    """The table in a CSV, TSV, JSON lines or Parquet file, by its ending; cells of CSV and TSV are text.

    Raises:
        DataError: it cannot be read, a line is not like the others, or it holds no rows.
    """
    try:
        table = _read(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({(error.strerror or str(error)).lower()}).") from error
    if not len(table):
        raise DataError(f"{path} holds no rows. A manifest has one row for each picture.")
    return table


def _read(path: Path) -> Table:
    ending = path.suffix.lower()
    if ending in (".jsonl", ".ndjson"):
        from .json_lines import read_json_lines

        return read_json_lines(path)
    if ending == ".parquet":
        from .parquet import read_parquet

        return read_parquet(path)
    from .separated import read_separated

    return read_separated(path)


class Columns:
    """Columns that grow by rows of equal length, packed every so many rows."""

    def __init__(self, names: Sequence[str]):
        self._names = tuple(names)
        self._columns = [Growing() for _ in names]
        self._waiting: list[Sequence[object]] = []

    def add(self, row: Sequence[object]) -> None:
        """One row, a cell per column."""
        self._waiting.append(row)
        if len(self._waiting) == PIECE:
            self._pack(zip(*self._waiting, strict=True))

    def finish(self) -> dict[str, Sequence[Cell]]:
        """The columns by their names."""
        if self._waiting:
            self._pack(zip(*self._waiting, strict=True))
        return {name: column.finish() for name, column in zip(self._names, self._columns, strict=True)}

    def _pack(self, columns: Iterable[Sequence[object]]) -> None:
        for column, cells in zip(self._columns, columns, strict=True):
            column.add(cells)
        self._waiting = []
