"""Tables of answers as files, CSV, JSON lines or Parquet by the ending of the name: the same rows, columns and numbers.

Cells are guarded against spreadsheets in CSV alone: nobody computes what stands in the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import UsageError
from ..files import atomic
from .table import Column, Kind, Table, digits

CSV, LINES, PARQUET = ".csv", ".jsonl", ".parquet"
CELLS = 2**24
"""In a row group of a Parquet file, 64 MiB of numbers."""


def check_ending(path: Path) -> None:
    """Refuse a file whose name says no format of answers, or one that cannot be written here.

    Raises:
        UsageError: another ending, or Parquet without pyarrow.
    """
    ending = path.suffix.lower()
    if ending not in (CSV, LINES, PARQUET):
        raise UsageError(f"Answers go into a file whose name ends in {CSV}, {LINES} or {PARQUET}. Got {path}.")
    if ending == PARQUET:
        need_pyarrow()


def need_pyarrow() -> None:
    """Ask for it before a model has worked for an hour.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import pyarrow.parquet  # noqa: F401 - only to see that it is there
    except ImportError as error:
        raise UsageError("Parquet files need pyarrow: pip install 'vitrail[data]'.") from error


def write(path: Path, tables: Iterable[Table]) -> None:
    """Write tables one after another as one file, which is there when all have come, whole or not at all.

    However the rows are divided into tables, the bytes are the same.

    Args:
        tables: of one task, at least one.

    Raises:
        UsageError: as `check_ending`.
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    check_ending(path)
    into = {CSV: _csv, LINES: _lines, PARQUET: _parquet}[path.suffix.lower()]
    with atomic.write_file(path) as file:
        into(file, tables)


def as_text(name: str) -> str:
    """A name as text, which the bytes of a file's name need not be."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _csv(file: BinaryIO, tables: Iterable[Table]) -> None:
    for number, table in enumerate(tables):
        file.write(table.csv_bytes()[len(table.csv_head()) if number else 0 :])


def _lines(file: BinaryIO, tables: Iterable[Table]) -> None:
    """One object a line; bytes of a name that are no text stand as Python's lone surrogates, which give them back."""
    for table in tables:
        for row in table.records():
            text = json.dumps(_short(row), ensure_ascii=False, allow_nan=False)
            file.write(text.encode("utf-8", "backslashreplace") + b"\n")


def _short(value: object) -> object:
    """Numbers as the CSV has them, in the nine digits that give a float32 back."""
    if isinstance(value, dict):
        return {name: _short(cell) for name, cell in value.items()}
    return float(digits(value)) if isinstance(value, float) else value


def _parquet(file: BinaryIO, tables: Iterable[Table]) -> None:
    import pyarrow.parquet

    writer: Any = None
    try:
        for group in _groups(_arrow(table) for table in tables):
            writer = writer or pyarrow.parquet.ParquetWriter(file, group.schema)
            if len(group):
                writer.write_table(group, row_group_size=len(group))
    finally:
        if writer is not None:
            writer.close()


def _groups(tables: Iterator[Any]) -> Iterator[Any]:
    """Arrow's tables, cut and joined into row groups of equal length, the last one of what is left."""
    import pyarrow

    waiting = next(tables)
    size = max(1, CELLS // len(waiting.schema))
    for table in tables:
        while len(waiting) >= size:
            yield waiting.slice(0, size).combine_chunks()
            waiting = waiting.slice(size)
        waiting = pyarrow.concat_tables([waiting, table])
    yield from (waiting.slice(start, size).combine_chunks() for start in range(0, max(1, len(waiting)), size))


def _arrow(table: Table) -> Any:
    """The table in Arrow's types."""
    import pyarrow

    columns = table.all_columns()
    schema = pyarrow.schema([(as_text(name), _type(column.kind)) for name, column in columns.items()])
    arrays = [pyarrow.array(_cells(column), kind) for column, kind in zip(columns.values(), schema.types, strict=True)]
    return pyarrow.table(arrays, schema=schema)


def _type(kind: Kind) -> Any:
    import pyarrow

    if kind == "text":
        return pyarrow.string()
    if kind == "number":
        return pyarrow.float32()
    if kind == "names":
        return pyarrow.list_(pyarrow.string())
    return pyarrow.struct([(as_text(name), pyarrow.float32()) for name in kind])


def _cells(column: Column) -> Any:
    """The values of a column with all words as text."""
    if column.kind == "number":
        return column.values
    return [_texts(value) for value in column.plain()]


def _texts(value: object) -> object:
    if isinstance(value, str):
        return as_text(value)
    if isinstance(value, list):
        return [_texts(one) for one in value]
    return {as_text(name): number for name, number in value.items()} if isinstance(value, dict) else value
