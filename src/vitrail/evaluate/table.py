"""What the tables of answers of all three tasks share: rows with a name, safe cells, one way into and out of CSV."""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from ..data.csv_injection import escape_cell, format_csv_lines, unescape_cell
from ..data.source import ImageInput
from ..errors import DataError, UsageError
from ..files import atomic

BEFORE = ("path", "id", "split")
AFTER = ("abstain",)
ANSWERED = "no"
"""What that column says of a picture that is answered."""
Kind = Literal["text", "number", "names"] | tuple[str, ...]
"""What the cells of a column hold: text, a number, any number of names, or a number for each of these names."""


class Column(NamedTuple):
    """One column of a table, for readers that know types."""

    kind: Kind
    values: Sequence[object] | np.ndarray
    """float32 [n], or n of str, float, list[str] or dict[str, float | None]; None where a cell is empty."""

    def plain(self) -> list[object]:
        """The same without numpy."""
        found: list[object] = self.values.tolist() if isinstance(self.values, np.ndarray) else list(self.values)
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Table(ABC):
    """One row per picture, the same columns from every door."""

    paths: tuple[str, ...]
    """Where each picture lies; empty for one that came as an array."""
    ids: tuple[str, ...]
    """The name of each picture inside its source."""
    split: str
    """Which part of the source: train, val, test, or empty when nobody said."""
    skipped: tuple[tuple[str, str], ...] = ()
    """(path, reason) of pictures that could not be read and were left out on purpose; not part of the file."""
    abstained: tuple[str, ...] = ()
    """Why each picture is not answered, empty for one that is; nothing at all where every picture is answered."""

    @property
    def silent(self) -> np.ndarray:
        """bool [n]: which pictures are not answered."""
        return np.array([bool(why) for why in self.abstained] or [False] * len(self), bool)

    @abstractmethod
    def header(self) -> list[str]:
        """The names of the columns between `split` and `abstain`."""

    @abstractmethod
    def cells(self) -> Iterator[list[str]]:
        """What stands below them, row by row; cells with words are guarded."""

    @abstractmethod
    def own_columns(self) -> dict[str, Column]:
        """The same columns with their types, by their names."""

    def all_columns(self) -> dict[str, Column]:
        """All columns of the file with their types, by their names."""
        before = (self.paths, self.ids, (self.split,) * len(self))
        names = {name: Column("text", cells) for name, cells in zip(BEFORE, before, strict=True)}
        return {**names, **self.own_columns(), **{name: Column("text", self.told()) for name in AFTER}}

    def records(self) -> list[dict[str, object]]:
        """The rows as dictionaries with the columns of the file; None where a cell is empty."""
        columns = self.all_columns()
        cells = [column.plain() for column in columns.values()]
        return [dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True)]

    def __len__(self) -> int:
        return len(self.ids)

    def write(self, path: Path) -> None:
        """Write the table in one step, as CSV, JSON lines or Parquet by the ending of the name.

        Raises:
            UsageError: another ending, or Parquet without pyarrow.
            ResourceError: the disk is full or read-only, or permission is missing.
        """
        from .table_files import write  # which knows tables

        write(path, [self])

    def write_csv(self, path: Path) -> None:
        """Write the table in one step. Numbers keep nine digits, which give every float32 back exactly."""
        atomic.write_bytes(path, self.csv_bytes())

    def csv_bytes(self) -> bytes:
        """The same table as the bytes of a file, for standard output."""
        return "".join(format_csv_lines(self._rows())).encode("utf-8", "surrogateescape")

    def csv_head(self) -> bytes:
        """The first of those bytes, which name the columns."""
        return next(format_csv_lines(self._rows())).encode("utf-8", "surrogateescape")

    def _rows(self) -> Iterator[list[str]]:
        yield [*BEFORE, *self.header(), *AFTER]
        split = escape_cell(self.split)
        for path, id, middle, why in zip(self.paths, self.ids, self.cells(), self.told(), strict=True):
            yield [escape_cell(path), escape_cell(id), split, *middle, why]

    def told(self) -> list[str]:
        """The column `abstain`: why a picture is not answered, or "no"."""
        return [why or ANSWERED for why in self.abstained] or [ANSWERED] * len(self)


@dataclass(frozen=True)
class Read:
    """A table as it stands in a file, its own columns still as text."""

    paths: tuple[str, ...]
    ids: tuple[str, ...]
    split: str
    header: tuple[str, ...]
    """The columns between `split` and `abstain`."""
    rows: tuple[tuple[str, list[str]], ...]
    """Where each row stands, for messages, and its cells below that header."""
    abstained: tuple[str, ...]
    """As in `Table`."""


def path_of(picture: ImageInput) -> str:
    """Where a picture lies: its file, or its name inside something larger; empty for an array."""
    if isinstance(picture, np.ndarray):
        return ""
    return str(picture) if isinstance(picture, Path) else picture.name


def read_rows(path: Path, expected: str, header_fits: Sequence[str] = ()) -> Read:
    """The rows of a file that `Table.write_csv` wrote.

    Args:
        expected: the columns between `split` and `abstain`, in words, for messages.
        header_fits: how those columns must begin.

    Raises:
        DataError: not such a table; the message names the file and the line.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8", "surrogateescape")
    except OSError as problem:
        raise DataError(f"A predictions file is needed at {path}. {problem.strerror or problem}.") from problem
    reader = csv.reader(io.StringIO(text, newline=""))
    header = next(reader, [])
    begin = (*BEFORE, *header_fits)
    if tuple(header[: len(begin)]) != begin or tuple(header[-len(AFTER) :]) != AFTER:
        raise wrong_header(path, expected, header)
    paths, ids, splits, rows, abstained = [], [], [], [], []
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        if len(row) != len(header):
            raise DataError(f"{where}: a row must have {len(header)} cells, as the header. Got {len(row)}.")
        paths.append(unescape_cell(row[0]))
        ids.append(unescape_cell(row[1]))
        splits.append(unescape_cell(row[2]))
        rows.append((where, row[len(BEFORE) : -len(AFTER)]))
        abstained.append("" if row[-1] in (ANSWERED, "0") else row[-1])  # 0 in tables of older versions
    if len(set(splits)) > 1:
        raise DataError(f"{path}: one file holds one split. Got {', '.join(sorted(set(splits)))}.")
    middle = tuple(header[len(BEFORE) : -len(AFTER)])
    reasons = tuple(abstained) if any(abstained) else ()
    return Read(tuple(paths), tuple(ids), splits[0] if splits else "", middle, tuple(rows), reasons)


def wrong_header(path: Path, expected: str, header: Sequence[str]) -> DataError:
    """What to raise at a first line that is not that of the table."""
    return DataError(
        f"{path}: the first line must read {','.join(BEFORE)},{expected},{','.join(AFTER)}. "
        f"Got {','.join(header)[:200] or 'nothing'}."
    )


def check_alike(parts: Sequence[Table], names: Sequence[tuple[str, ...]]) -> None:
    """Refuse to join nothing, or parts of different classes or splits.

    Args:
        names: the names of each part's outputs.
    """
    if not parts:
        raise UsageError("Joining predictions needs at least one part. Got none.")
    for part, own in zip(parts, names, strict=True):
        if (own, part.split) != (names[0], parts[0].split):
            raise UsageError(
                "Predictions to join must share classes and split. "
                f"Got {names[0]} of '{parts[0].split}' and {own} of '{part.split}'."
            )


def joined_reasons(parts: Sequence[Table]) -> tuple[str, ...]:
    """Why the pictures of all parts are not answered."""
    if not any(part.abstained for part in parts):
        return ()
    return tuple(why for part in parts for why in part.abstained or ("",) * len(part))


def joined_extras(found: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Further columns of all parts; None where one of them has none."""
    there = [one for one in found if one is not None]
    return np.concatenate(there) if there and len(there) == len(found) else None


def joined_targets(parts: Sequence[tuple[np.ndarray | None, np.ndarray]]) -> np.ndarray | None:
    """The targets of all parts; those of a part without any are as unknown as its second array says.

    Args:
        parts: of each part its targets, and what they are when nothing is known.
    """
    if all(targets is None for targets, _ in parts):
        return None
    return np.concatenate([unknown if targets is None else targets for targets, unknown in parts])


def check_shape(table: Table, answers: np.ndarray, names: tuple[str, ...], what: str) -> None:
    """Refuse answers that are not one row per picture and one column per name.

    Raises:
        UsageError: the shapes, in words.
    """
    shape = (len(table.ids), len(names))
    if answers.shape != shape or len(table.paths) != len(table.ids):
        raise UsageError(
            f"Predictions of {shape[0]} ids and {shape[1]} {what} of shape {shape} and as many "
            f"paths. Got {answers.shape} and {len(table.paths)} paths."
        )
    if table.abstained and len(table.abstained) != len(table.ids):
        raise UsageError(f"One reason per picture is needed, {len(table.ids)}. Got {len(table.abstained)}.")


def numbers(cells: Sequence[str], where: str, what: str) -> list[float]:
    """Cells as numbers.

    Raises:
        DataError: one that is none; `what` says what they must be.
    """
    try:
        return [float(cell) for cell in cells]
    except ValueError as problem:
        raise DataError(f"{where}: {what} must be numbers. Got {', '.join(cells)[:200]}.") from problem


def digits(number: float) -> str:
    """A float32 in nine digits, which give it back exactly."""
    return f"{number:.9g}"
