"""Tables in text files: CSV, TSV and their kin, every cell kept as the text it is."""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import DataError
from ..decoding.picture_names import names_picture
from .tables import Columns, Table

DELIMITERS = ",;\t|"
SAMPLE = 20  # rows that decide on the delimiter and the width
LOOK = 2**16  # characters that hold them


def read_separated(path: Path) -> Table:
    """A table whose cells are parted by commas, semicolons, tabs, bars or, where there is none of them, spaces.

    The first line names the columns, unless it names a picture. UTF-8 with or without a byte order mark, UTF-16 with
    one; what is neither is read as Windows-1252, with a note. Empty lines and empty cells at the end of a line that
    no column stands above are left out. No cell is taken for a number, a date, a formula or nothing.

    Raises:
        DataError: a line has more or fewer cells than there are columns, quotation marks do not close, two columns
            have one name, or the text is in no known encoding.
    """
    try:
        return _read(path, _encoding(path), ())
    except UnicodeError:
        note = f"{path.name} is not UTF-8 text; it was read as Windows-1252."
    try:
        return _read(path, "cp1252", (note,))
    except UnicodeError as error:
        raise DataError(f"{path} is neither UTF-8 nor Windows-1252 text. Save it as UTF-8.") from error


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


@dataclass(frozen=True)
class _Layout:
    """How the lines of a file are to be read."""

    delimiter: str
    names: tuple[str, ...]
    header: bool
    spoken: bool  # begins with Excel's line "sep=;"
    notes: tuple[str, ...] = ()


def _read(path: Path, encoding: str, notes: tuple[str, ...]) -> Table:
    with path.open(newline="", encoding=encoding) as file:
        layout = _layout(path.name, file.read(LOOK))
        file.seek(0)
        columns = Columns(layout.names)
        lines = array("q")
        for line, row in _rows(path.name, file, layout):
            columns.add(row)
            lines.append(line)
    found = np.frombuffer(lines, np.int64) if lines else np.zeros(0, np.int64)
    return Table(name=path.name, columns=columns.finish(), lines=found, notes=(*notes, *layout.notes))


def _rows(name: str, file: io.TextIOWrapper, layout: _Layout) -> Iterator[tuple[int, list[str]]]:
    """The line each row begins at, and its cells."""
    reader = csv.reader(file, delimiter=layout.delimiter, skipinitialspace=True, strict=True)
    width = len(layout.names)
    waiting = layout.spoken + layout.header  # rows that hold no data
    begins = 1
    try:
        for row in reader:
            line, begins = begins, reader.line_num + 1
            if not any(row):
                continue
            if waiting:
                waiting -= 1
                continue
            if len(row) != width:
                if len(row) < width or any(row[width:]):
                    raise DataError(_uneven(name, line, len(row), layout))
                del row[width:]
            yield line, row
    except csv.Error as error:
        raise DataError(
            f"{name}, line {begins}: its quotation marks do not close or stand amid a text, or a cell is endless "
            f'({error}). Within a quoted text a quotation mark is written twice: "".'
        ) from error


def _uneven(name: str, line: int, fields: int, layout: _Layout) -> str:
    fields_are = f"{fields} field" + "s" * (fields != 1)
    delimiter = {"\t": "a tab", " ": "a space"}.get(layout.delimiter, layout.delimiter)
    return (
        f"{name}, line {line}: {fields_are}, expected {len(layout.names)} ({', '.join(map(repr, layout.names[:8]))}"
        f"{', ...' if len(layout.names) > 8 else ''}). A text that holds {delimiter} needs quotation marks around it."
    )


def _layout(name: str, start: str) -> _Layout:
    spoken = re.match(r"sep=(.)\r?\n?", start)
    sample = start[spoken.end() :] if spoken else start
    delimiter = spoken[1] if spoken else _delimiter(sample)
    rows = _sample(sample, delimiter)
    if not rows:
        raise DataError(f"{name} is empty. A manifest has one row for each picture.")
    width = max((place + 1 for row in rows for place, cell in enumerate(row) if cell), default=0)
    if any(names_picture(cell) for cell in rows[0]):
        width = min(width, Counter(map(len, rows)).most_common(1)[0][0])
        names = tuple(f"column {place + 1}" for place in range(width))
        listed = ", ".join(map(repr, names))
        note = f"{name} has no header: its first line names a picture. Its columns are called {listed}."
        return _Layout(delimiter, names, False, bool(spoken), (note,))
    header = [cell.strip() for cell in rows[0]]
    while header and not header[-1]:
        header.pop()
    names = tuple(cell or f"column {place + 1}" for place, cell in enumerate(header))
    twice = [column for column, count in Counter(names).items() if count > 1]
    if twice:
        places = " and ".join(str(place + 1) for place, column in enumerate(names) if column == twice[0])
        raise DataError(f"{name}, line 1: columns {places} are called {twice[0]!r}. Give each a name of its own.")
    return _Layout(delimiter, names, True, bool(spoken))


def _delimiter(sample: str) -> str:
    """The delimiter of the first line: one that parts all sampled lines alike before one that does not, then the most
    frequent, then the first of , ; tab |."""
    first = next((line for line in sample.splitlines() if line.strip()), "")
    found = [delimiter for delimiter in DELIMITERS if delimiter in first]
    if not found:
        return " " if " " in first.strip() and any(map(names_picture, first.split())) else ","

    def merit(delimiter: str) -> tuple[bool, int]:
        rows = _sample(sample, delimiter)
        widths = {len(row) for row in rows}
        return len(widths) == 1 and widths != {1}, len(rows[0]) if rows else 0

    return max(found, key=merit)


def _sample(sample: str, delimiter: str) -> list[list[str]]:
    """The first rows; the last one may be cut short and is left out where there are more."""
    rows: list[list[str]] = []
    reader = csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        for row in reader:
            if any(row):
                rows.append(row)
            if len(rows) > SAMPLE:
                break
    except csv.Error:  # reading the whole file says where
        pass
    return rows[:-1] if len(rows) > SAMPLE or (len(sample) == LOOK and len(rows) > 1) else rows
