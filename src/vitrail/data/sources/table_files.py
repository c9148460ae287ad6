"""Read manifest tables as columns: CSV and TSV (cells stay text), JSON lines and Parquet (cells keep their types)."""

from __future__ import annotations

import csv
import io
import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...files.sniff import HEAD_BYTES, kind_from_bytes
from ...formatting import format_count
from ..decoding.decoded_image import has_image_extension
from ..labels.codes import Cell, ColumnBuilder

DELIMITERS = ",;\t|"
SAMPLE_ROWS = 20  # rows from which the delimiter and the number of columns are inferred
SAMPLE_CHARACTERS = 2**16  # characters that hold them


def read_delimited(path: Path) -> ManifestTable:
    """Read a table delimited by commas, semicolons, tabs, bars or, where there is none of them, spaces.

    The first line names the columns, unless it names an image; titles above it are left out with a note. UTF-8 and
    UTF-16 with or without a byte order mark; other bytes are read as Windows-1252, with a note. Empty lines, and empty
    cells beyond the last column, are left out. Cells are not converted to numbers, dates or missing values.
    """
    with path.open("rb") as file:
        encoding = _detect_encoding(file.read(2))
    try:
        return _read_delimited_as(path, encoding, ())
    except UnicodeError:
        note = f"{path.name} is not UTF-8 text; it was read as Windows-1252."
    try:
        return _read_delimited_as(path, "cp1252", (note,))
    except UnicodeError as error:
        raise DataError(f"{path} is neither UTF-8 nor Windows-1252 text. Save it as UTF-8.") from error


def _detect_encoding(start: bytes) -> str:
    """The encoding by the first two bytes: a byte order mark, or a letter of ASCII with a zero beside it."""
    if start in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    return {b"\0": "utf-16-be"}.get(start[:1], {b"\0": "utf-16-le"}.get(start[1:], "utf-8-sig"))


@dataclass(frozen=True)
class _CsvLayout:
    """How a file is to be read: its delimiter, columns, and lines without data."""

    delimiter: str
    names: tuple[str, ...]
    skipped: int  # rows that hold no data: Excel's line "sep=;", titles, the header
    notes: tuple[str, ...] = ()


def _read_delimited_as(path: Path, encoding: str, notes: tuple[str, ...]) -> ManifestTable:
    with path.open(newline="", encoding=encoding) as file:
        layout = _detect_layout(path.name, file.read(SAMPLE_CHARACTERS))
        file.seek(0)
        columns = TableBuilder(layout.names)
        lines = array("q")
        repeated: list[int] = []  # lines that repeat the header
        for line, row in _iter_csv_rows(path.name, file, layout, repeated):
            columns.append_row(row)
            lines.append(line)
    if repeated:
        lined = ", ".join(map(str, repeated[:8])) + (", ..." if len(repeated) > 8 else "")
        notes = (*notes, f"{path.name} repeats its header in line {lined}, as joined tables do; it names no picture.")
    return ManifestTable(
        name=path.name, columns=columns.build(), lines=np.array(lines, np.int64), notes=(*notes, *layout.notes)
    )


def _iter_csv_rows(
    name: str, file: io.TextIOWrapper, layout: _CsvLayout, repeated: list[int]
) -> Iterator[tuple[int, list[str]]]:
    """Iterate over rows with the line at which each begins; lines that repeat the header go into `repeated`."""
    reader = csv.reader(_require_text(name, file), delimiter=layout.delimiter, skipinitialspace=True, strict=True)
    width = len(layout.names)
    waiting = layout.skipped
    begins = 1
    try:
        for row in reader:
            line, begins = begins, reader.line_num + 1
            if not any(row):
                continue
            if waiting:
                waiting -= 1
                continue
            row[0] = row[0].removeprefix("\ufeff")  # the byte order mark of a file that was joined to another
            if row[0].strip() == layout.names[0] and tuple(map(str.strip, row[:width])) == layout.names:
                repeated.append(line)
                continue
            if len(row) < width or any(row[width:]):
                count = f"{len(row)} field" + "s" * (len(row) != 1)
                expected = ", ".join(map(repr, layout.names[:8])) + (", ..." if width > 8 else "")
                delimiter = {"\t": "a tab", " ": "a space"}.get(layout.delimiter, layout.delimiter)
                raise DataError(
                    f"{name}, line {line}: {count}, expected {width} ({expected}). A text that holds {delimiter} needs "
                    "quotation marks around it."
                )
            yield line, row[:width]
    except csv.Error as error:
        raise DataError(
            f"{name}, line {begins}: its quotation marks do not close or stand amid a text, or a cell is endless "
            f'({error}). Within a quoted text a quotation mark is written twice: "".'
        ) from error


def _require_text(name: str, lines: Iterable[str]) -> Iterator[str]:
    """Pass lines on; a NUL, which spreadsheets and editors hide, is an error."""
    for number, line in enumerate(lines, 1):
        if "\0" in line:
            raise DataError(
                f"{name}, line {number}: holds a NUL byte, which no text does, as files do that were cut off while "
                "they were written. Copy it again, or save it as UTF-8."
            )
        yield line


def _detect_layout(name: str, start: str) -> _CsvLayout:
    stated = re.match(r"sep=(.)\r?\n?", start)
    sample = start[stated.end() :] if stated else start
    delimiter = stated[1] if stated else _detect_delimiter(sample)
    rows = _sample_rows(sample, delimiter)
    notes: tuple[str, ...] = ()
    if not rows:
        raise DataError(f"{name} is empty. A manifest has one row for each picture.")
    titles = _count_titles(rows)
    if titles:
        note = f"{name}: {format_count(titles, 'line')} above the header left out, such as {max(rows[0], key=len)!r}."
        notes, rows = (note,), rows[titles:]
    width = max((place + 1 for row in rows for place, cell in enumerate(row) if cell), default=0)
    if any(has_image_extension(cell) for cell in rows[0]):
        width = min(width, Counter(map(len, rows)).most_common(1)[0][0])
        names = tuple(f"column {place + 1}" for place in range(width))
        listed = ", ".join(map(repr, names))
        note = f"{name} has no header: its first line names a picture. Its columns are called {listed}."
        return _CsvLayout(delimiter, names, bool(stated) + titles, (*notes, note))
    header = [cell.strip() for cell in rows[0]]
    while header and not header[-1]:
        header.pop()
    names = tuple(cell or f"column {place + 1}" for place, cell in enumerate(header))
    twice = [column for column, count in Counter(names).items() if count > 1]
    if twice:
        places = " and ".join(str(place + 1) for place, column in enumerate(names) if column == twice[0])
        raise DataError(f"{name}, line 1: columns {places} are called {twice[0]!r}. Give each a name of its own.")
    return _CsvLayout(delimiter, names, bool(stated) + titles + 1, notes)


def _count_titles(rows: list[list[str]]) -> int:
    """How many of the first rows have a single cell, where most others have more."""
    filled = [sum(map(bool, row)) for row in rows]
    titles = next((number for number, count in enumerate(filled) if count > 1), 0)
    return titles if sum(count > 1 for count in filled) > titles else 0


def _detect_delimiter(sample: str) -> str:
    """The delimiter that gives all sampled lines the same number of cells, or else the most frequent one."""
    first = next((line for line in sample.splitlines() if line.strip()), "")
    candidates = [delimiter for delimiter in DELIMITERS if delimiter in sample]
    if not candidates:
        return " " if " " in first.strip() and any(map(has_image_extension, first.split())) else ","

    def merit(delimiter: str) -> tuple[bool, bool, int]:
        rows = _sample_rows(sample, delimiter)
        titles = _count_titles(rows)
        widths = {len(row) for row in rows[titles:]}
        equal = len(widths) == 1 and widths != {1}
        return equal and not titles, equal, len(rows[0]) if rows else 0

    return max(candidates, key=merit)


def _sample_rows(sample: str, delimiter: str) -> list[list[str]]:
    """The first rows; the last one may be truncated and is left out where there are more."""
    rows: list[list[str]] = []
    reader = csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter, skipinitialspace=True)
    try:
        for row in reader:
            if any(row):
                rows.append(row)
            if len(rows) > SAMPLE_ROWS:
                break
    except csv.Error:  # reading the whole file says where
        pass
    return rows[:-1] if len(rows) > SAMPLE_ROWS or (len(sample) == SAMPLE_CHARACTERS and len(rows) > 1) else rows


# -- JSON lines: one object per line.


def read_json_lines(path: Path) -> ManifestTable:
    """Read lines such as {"path": "a.png", "label": "cat"}; a name missing from a line is unknown there.

    Texts, numbers, bools, nulls and lists of texts keep their types; nested objects become text.
    """
    names: dict[str, None] = {}  # all names in any line, in order of first appearance
    for _, fields in _iter_json_objects(path):
        if not fields.keys() <= names.keys():
            names |= dict.fromkeys(fields)
    columns = TableBuilder(tuple(names))
    lines = array("q")
    for line, fields in _iter_json_objects(path):
        columns.append_row([flatten_json_value(fields.get(name)) for name in names])
        lines.append(line)
    return ManifestTable(name=path.name, columns=columns.build(), lines=np.array(lines, np.int64))


def _iter_json_objects(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Iterate over (line number, object) of every line that is not empty."""
    with path.open("rb") as file:
        for line, raw in enumerate(file, 1):
            text = raw.strip().removeprefix(b"\xef\xbb\xbf")
            if not text:
                continue
            try:
                fields = json.loads(text, object_pairs_hook=reject_duplicate_keys)
                json.dumps(fields, ensure_ascii=False).encode()  # refuses half a character, such as \ud800
            except (ValueError, RecursionError) as error:  # JSON and UTF-8 errors are both ValueErrors
                raise DataError(f"{path.name}, line {line}: this is not JSON ({error}).") from error
            if not isinstance(fields, dict):
                raise DataError(
                    f"{path.name}, line {line}: expected an object such as "
                    f'{{"path": "a.png", "label": "cat"}}. Got {str(fields)[:60]!r}.'
                )
            yield line, fields


def reject_duplicate_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Build an object; a repeated name is an error, where json would silently keep the last value."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it says {next(name for name in names if names.count(name) > 1)!r} twice")
    return fields


def flatten_json_value(value: object) -> object:
    """Convert a JSON value to a cell; objects, and lists of lists or objects, become text."""
    nested = isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(part, dict | list) or part is None for part in value)
    )
    return json.dumps(value, ensure_ascii=False) if nested else value


# -- Manifest tables: choosing the reader, and naming rows in messages.

PIECE = 2**16
"""Rows buffered before they are encoded."""


@dataclass(frozen=True, kw_only=True)
class ManifestTable:
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
        """A row in messages: "films.csv, line 17"."""
        return f"{self.name}, {self.unit} {int(self.lines[row])}"


def read_manifest_table(path: Path) -> ManifestTable:
    """Read the table in a CSV, TSV, JSON lines or Parquet file, by its extension; cells of CSV and TSV are text.

    Raises:
        DataError: it cannot be read, a line is not like the others, it holds no rows or the images themselves, or
            pyarrow is not installed.
    """
    _require_table(path)
    readers = {".jsonl": read_json_lines, ".ndjson": read_json_lines, ".parquet": read_parquet}
    try:
        table = readers.get(path.suffix.lower(), read_delimited)(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({(error.strerror or str(error)).lower()}).") from error
    if not len(table):
        raise DataError(f"{path} holds no rows. A manifest has one row for each picture.")
    return table


_NO_TABLES = {
    "zip": "a ZIP archive, as the files of Excel are. Save the sheet as CSV, or unpack the archive",
    "gzip": "packed with gzip. Unpack it: gzip -d",
    "xz": "packed with xz. Unpack it: xz -d",
    "bzip2": "packed with bzip2. Unpack it: bzip2 -d",
    "zstd": "packed with zstd. Unpack it: zstd -d",
    "lfs": "a Git LFS pointer, which stands for the table. Run `git lfs pull` in its folder",
    "html": "a web page, as a download that needs a login is answered with. Download it again",
}
"""Kinds of files that are often called like a table, with what to do."""


def _require_table(path: Path) -> None:
    """Refuse a file of another kind by its first bytes, before its contents are taken for cells."""
    try:
        with path.open("rb") as file:
            kind = kind_from_bytes(file.read(HEAD_BYTES))
    except OSError:
        return  # the reader says why
    if kind in _NO_TABLES:
        raise DataError(f"{path} is no table but {_NO_TABLES[kind]}.")


class TableBuilder:
    """Builds columns from rows of equal length, encoded in chunks of rows."""

    def __init__(self, names: Sequence[str]):
        self._names = tuple(names)
        self._columns = [ColumnBuilder() for _ in names]
        self._pending_rows: list[Sequence[object]] = []

    def append_row(self, row: Sequence[object]) -> None:
        """Append one row, a cell per column."""
        self._pending_rows.append(row)
        if len(self._pending_rows) == PIECE:
            self._encode_pending()

    def build(self) -> dict[str, Sequence[Cell]]:
        """The columns by their names."""
        if self._pending_rows:
            self._encode_pending()
        return {name: column.build() for name, column in zip(self._names, self._columns, strict=True)}

    def _encode_pending(self) -> None:
        for column, cells in zip(self._columns, zip(*self._pending_rows, strict=True), strict=True):
            column.append_cells(cells)
        self._pending_rows = []


# -- Parquet, read in batches with pyarrow.


def read_parquet(path: Path) -> ManifestTable:
    """Read a Parquet table; cells keep the types of the file."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError("Parquet files need pyarrow: pip install 'vitrail[data]'.") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            kinds = {field.name: str(field.type) for field in file.schema_arrow}
            if len(kinds) < len(file.schema_arrow):
                twice = next(name for name, count in Counter(file.schema_arrow.names).items() if count > 1)
                raise DataError(f"{path} has several columns called {twice!r}. Give each a name of its own.")
            for name, kind in kinds.items():
                if kind.startswith(("binary", "large_binary", "struct<bytes: binary")):  # the images themselves
                    raise DataError(
                        f"Column {name!r} of {path} holds bytes. If these are the pictures, it is no manifest: write "
                        f"datasets.load_dataset('parquet', data_files={path.name!r})['train'].save_to_disk('FOLDER') "
                        "in Python, and pass FOLDER."
                    )
            columns = TableBuilder(tuple(kinds))
            for piece in file.iter_batches(PIECE, columns=list(kinds)):
                for row in zip(*(column.to_pylist() for column in piece.columns), strict=True):
                    columns.append_row(row)
            rows = file.metadata.num_rows
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} is not a readable Parquet file ({str(error).splitlines()[0]}).") from error
    lines = np.arange(1, rows + 1, dtype=np.int64)
    return ManifestTable(name=path.name, columns=columns.build(), lines=lines, unit="row")
