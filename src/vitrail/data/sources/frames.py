"""DataFrames of pandas: a column of paths, arrays or Pillow pictures, and columns that say what they show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL.Image import Image
from torch import Tensor

from ...errors import DataError
from ..honoured import refuse_others
from ..settings import DataSettings
from ..source import Source
from .assemble import assemble
from .objects import pictures_of
from .tabled import read_table


def open_frame(frame: Any, settings: DataSettings) -> Source:
    """A DataFrame; roles of columns are found by name and content, or told by `settings`.

    Relative paths belong to `settings.data_root`, or to the folder in which Python runs.

    Raises:
        DataError: no rows, no column of pictures, or none of labels.
    """
    refuse_others(settings, "frame", "a DataFrame")
    names = [str(name) for name in frame.columns]
    if not len(frame):
        raise DataError("The DataFrame has no rows.")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"The DataFrame has several columns called {twice!r}. Rename all but one.")
    numbers = {name: number for number, name in enumerate(names)}

    def cells(name: str) -> Sequence[object]:
        return _cells(frame.iloc[:, numbers[name]])

    firsts = {name: _first(cells(name)) for name in names}
    pictures = [settings.path] if settings.path in names else [name for name in names if _is_picture(firsts[name])]
    if len(pictures) > 1:
        raise DataError(
            f"The DataFrame has several columns of pictures: {', '.join(map(repr, pictures))}. Name one with "
            f"--data.path {pictures[0]}."
        )
    picture = pictures[0] if pictures else ""
    told = {*settings.targets, settings.split, settings.group}
    plain = [name for name in names if name == picture or name in told or _is_plain(firsts[name])]
    table = read_table(plain, cells, picture, settings, "DataFrame")
    root = Path(settings.data_root).expanduser() if settings.data_root else None
    found, ids = pictures_of(cells(table.path), root)
    return assemble(
        "frame",
        found,
        ids,
        table.answers,
        groups=table.groups,
        splits=table.splits,
        metadata=table.metadata,
        notes=table.notes,
    )


def _cells(column: Any) -> list[object]:
    """Python's own values; None for every kind of nothing that pandas knows."""
    return column.astype(object).where(column.notna(), None).tolist()


def _first(cells: Sequence[object]) -> object:
    return next((cell for cell in cells if cell is not None), None)


def _is_picture(cell: object) -> bool:
    """Whether a cell is a picture by itself, and no path to one."""
    if isinstance(cell, np.ndarray | Tensor):
        return cell.ndim >= 2
    return isinstance(cell, Image | bytes) or (isinstance(cell, dict) and bool({"bytes", "path"} & cell.keys()))


def _is_plain(cell: object) -> bool:
    if isinstance(cell, np.ndarray | Tensor):
        return cell.ndim < 2
    return not _is_picture(cell) and not isinstance(cell, dict)
