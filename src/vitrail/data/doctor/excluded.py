"""The list of pictures to leave out: a CSV that the doctor writes, a person may edit, and `--exclude` takes."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...files.atomic import write_bytes
from ...plural import counted
from ..formulas import guarded, lines, unguarded
from ..source import Source

COLUMNS = ("id", "path", "reason")
NAMED = 5


def write(path: Path, source: Source, rows: Iterable[tuple[int, str]]) -> None:
    """Replace a CSV of id, path and reason, one line per (row, reason); `path` is empty where there is no file."""
    text = "".join(lines([COLUMNS, *(_cells(source, row, reason) for row, reason in rows)]))
    write_bytes(path, text.encode("utf-8", "surrogateescape"))


def read(path: Path, source: Source) -> NDArray[np.int64]:
    """The rows that a list names, ascending, by `id` or, where that is empty or absent, by `path`.

    Raises:
        DataError: no such file, neither column, or a picture that the source does not have.
    """
    ids, paths = _named(path)
    found: list[int] = []
    for row, name in enumerate(source.ids if ids else ()):
        if name in ids:
            found.append(row)
    missing = set(ids) - {source.ids[row] for row in found}
    if paths:
        rows = {os.path.abspath(str(source.pictures[row])): row for row in range(len(source)) if _is_file(source, row)}
        found += [rows[place] for name in paths if (place := os.path.abspath(name)) in rows]
        missing |= {name for name in paths if os.path.abspath(name) not in rows}
    if missing:
        names = ", ".join(sorted(missing)[:NAMED])
        raise DataError(
            f"{path} leaves out {counted(len(missing), 'picture')} that {source.name} does not have: {names}"
            f"{' and more' if len(missing) > NAMED else ''}. Is it the list of another source? Take these lines out of "
            "it, or write it again with vitrail check SOURCE --out DIR."
        )
    return np.unique(np.array(found, dtype=np.int64))


def _cells(source: Source, row: int, reason: str) -> list[str]:
    picture = source.pictures[row]
    place = str(picture) if isinstance(picture, Path) else ""
    return [guarded(cell) for cell in (source.ids[row], place, reason)]


def _named(path: Path) -> tuple[set[str], set[str]]:
    """The ids of a list, and the paths of its lines that have no id."""
    ids: set[str] = set()
    paths: set[str] = set()
    try:
        text = Path(path).read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise DataError(
            f"{path}: the list to exclude cannot be read ({(error.strerror or str(error)).lower()})."
        ) from error
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)  # a spreadsheet may have saved it with another one than ours
    table = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    columns = [(name or "").strip() for name in table.fieldnames or ()]
    if not {"id", "path"} & set(columns):
        raise DataError(
            f"{path}: a list to exclude needs a first line with id or path among its columns. "
            f"Got {columns or 'nothing'}."
        )
    table.fieldnames = columns
    for line in table:
        name, place = (unguarded(line.get(column) or "") for column in ("id", "path"))
        if name:
            ids.add(name)
        elif place:
            paths.add(place)
    return ids, paths


def _is_file(source: Source, row: int) -> bool:
    return not isinstance(source.pictures, np.ndarray) and isinstance(source.pictures[row], Path)
