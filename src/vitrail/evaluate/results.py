"""`results.csv`: every figure of every split on a line of its own, for spreadsheets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..data.csv_injection import escape_cell, format_csv_lines
from ..files import atomic
from .measuring import Figures

NAME = "results.csv"
HEADER = ["split", "of", "figure", "value", "low", "high", "n"]
PARTS = ("per_class", "per_label", "per_column")
_INTERVAL = "_interval"


class Result(NamedTuple):
    """One figure. Its value is None where it is a range and no number; the ends are those of the range or interval."""

    split: str
    of: str
    """The class, label or column that it is of; empty for the whole split."""
    figure: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    """Pictures that are known, or that are of the class."""


def results(figures: Figures) -> Iterator[Result]:
    """The figures of a split in the order of its JSON, and then those of each class, label or column."""
    values = figures.to_json()
    yield from _of(values, figures.split, "")
    for part in PARTS:
        for one in values.get(part, ()):
            yield from _of(one, figures.split, one["name"])


def write(path: Path, figures: Iterable[Figures]) -> None:
    """Write the table in one step.

    Raises:
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    rows = [_cells(row) for each in figures for row in results(each)]
    atomic.write_bytes(path, "".join(format_csv_lines([HEADER, *rows])).encode("utf-8", "surrogateescape"))


def _of(values: Mapping[str, Any], split: str, of: str) -> Iterator[Result]:
    for name, value in values.items():
        if isinstance(value, float):
            low, high = values.get(name + _INTERVAL, (None, None))
            yield Result(split, of, name, value, low, high, values["n"])
        elif _is_range(value) and not name.endswith(_INTERVAL):
            yield Result(split, of, name, None, value[0], value[1], values["n"])


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(end, float) for end in value)


def _cells(row: Result) -> list[str]:
    numbers = ["" if number is None else repr(float(number)) for number in (row.value, row.low, row.high)]
    return [escape_cell(row.split), escape_cell(row.of), row.figure, *numbers, str(row.n)]
