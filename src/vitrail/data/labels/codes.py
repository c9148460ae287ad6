"""Categorical columns: distinct values and one code per row, so that a million labels take a few megabytes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from ..compact_strings import CompactStrings

Cell = str | int | float | bool | tuple[str, ...] | None
"""What one cell may hold; None is unknown, a tuple holds several words."""

Where = Callable[[int], str]
"""Names a row in messages, such as "films.csv, line 17"."""
Value = TypeVar("Value")


class CategoricalColumn(Sequence[Value]):
    """Distinct values, and the index of its value (code) for each row."""

    def __init__(self, values: Sequence[Value], codes: NDArray[np.int32]):
        self.values = tuple(values)
        self.codes = codes

    def __len__(self) -> int:
        return len(self.codes)

    def __iter__(self) -> Iterator[Value]:
        return map(self.values.__getitem__, self.codes.tolist())

    @overload
    def __getitem__(self, index: int) -> Value: ...
    @overload
    def __getitem__(self, index: slice) -> list[Value]: ...
    def __getitem__(self, index: int | slice) -> Value | list[Value]:
        if isinstance(index, slice):
            return [self.values[number] for number in self.codes[index].tolist()]
        return self.values[self.codes[index]]

    def counts(self) -> NDArray[np.int64]:
        """Number of rows of each value."""
        return np.bincount(self.codes, minlength=len(self.values)).astype(np.int64)

    def first_row(self, value_index: int) -> int:
        """The first row with the value of this index."""
        return int((self.codes == value_index).argmax())


def encode_categorical(cells: Sequence[object]) -> CategoricalColumn[Cell]:
    """Encode cells as a categorical column; one that is encoded already is returned."""
    if isinstance(cells, CategoricalColumn):
        return cells
    encoder = _CellEncoder()
    codes = encoder.encode(cells)
    return CategoricalColumn(encoder.values(), codes)


def normalize_cell(value: object) -> Cell:
    """Convert a cell to text, number, bool, tuple of words, or None for every kind of missing value."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)
    if isinstance(value, np.generic):
        return normalize_cell(value.item())
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(str(part) for part in value)
    if type(value).__name__ in ("NAType", "NaTType"):  # missing values of pandas
        return None
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def format_cell(cell: Cell) -> str:
    """Format a cell as it would be written in a table: missing is empty, several words are joined by |."""
    if cell is None:
        return ""
    return "|".join(cell) if isinstance(cell, tuple) else str(cell)


class ColumnBuilder:
    """Build a column from chunks of equal length (the last may be shorter).

    The column stays categorical while values repeat; a column of mostly distinct texts, such as file names, becomes
    `CompactStrings`.
    """

    def __init__(self) -> None:
        self._encoder = _CellEncoder()
        self._codes: list[NDArray[np.int32]] = []
        self._texts: list[CompactStrings] = []
        self._rows = 0

    def append_cells(self, cells: Sequence[object]) -> None:
        """Append the next chunk."""
        self._rows += len(cells)
        if self._texts:
            self._texts.append(CompactStrings(format_cell(normalize_cell(cell)) for cell in cells))
            return
        self._codes.append(self._encoder.encode(cells))
        values = self._encoder.values()
        if len(values) > max(MAX_CODED_VALUES, self._rows / 2) and all(isinstance(value, str) for value in values):
            self._texts = [CompactStrings(str(values[n]) for n in codes.tolist()) for codes in self._codes]
            self._codes, self._encoder = [], _CellEncoder()

    def build(self) -> Sequence[Cell]:
        """The complete column."""
        if self._texts:
            return ChunkedStrings(self._texts)
        codes = np.concatenate(self._codes) if self._codes else np.zeros(0, np.int32)
        return CategoricalColumn(self._encoder.values(), codes)


MAX_CODED_VALUES = 20_000  # distinct values up to which any column stays categorical


class _CellEncoder:
    """Distinct cells in order of first appearance; 1, 1.0, True and "1" are four different cells."""

    def __init__(self) -> None:
        self._codes: defaultdict[str | tuple[type, Cell], int] = defaultdict()
        self._codes.default_factory = self._codes.__len__  # a new cell gets the next code

    def encode(self, cells: Sequence[object]) -> NDArray[np.int32]:
        return np.fromiter(map(self._codes.__getitem__, map(_cell_key, cells)), np.int32, len(cells))

    def values(self) -> list[Cell]:
        return [key if isinstance(key, str) else key[1] for key in self._codes]


def _cell_key(cell: object) -> str | tuple[type, Cell]:
    if type(cell) is str:
        return cell
    plain = normalize_cell(cell)
    return str(plain) if isinstance(plain, str) else (type(plain), plain)


class ChunkedStrings(Sequence[str]):
    """Chunks of texts as one sequence; all chunks but the last have equal length."""

    def __init__(self, pieces: Sequence[CompactStrings]):
        self._pieces = tuple(pieces)
        self._size = len(pieces[0])
        self._length = sum(map(len, pieces))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[str]:
        for piece in self._pieces:
            yield from piece[:]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(self._length))]
        piece, row = divmod(range(self._length)[index], self._size)
        return self._pieces[piece][row]


def format_column(column: Sequence[Cell]) -> Sequence[str]:
    """A column as text; the values of a categorical column are stripped."""
    if isinstance(column, CategoricalColumn):
        return CategoricalColumn([format_cell(value).strip() for value in column.values], column.codes)
    if isinstance(column, ChunkedStrings):
        return column
    return CompactStrings(format_cell(cell).strip() for cell in column)


def take_rows(column: Sequence[str], rows: NDArray[np.int64]) -> Sequence[str]:
    """Select rows, ascending, of a column of texts; all rows give the column itself."""
    if len(rows) == len(column):
        return column
    if isinstance(column, CategoricalColumn):
        return CategoricalColumn(column.values, column.codes[rows])
    return CompactStrings(column[row] for row in rows.tolist())
