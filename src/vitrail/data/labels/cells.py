"""What one cell says where a number, or yes and no, is expected. Where words are classes, every cell is only text."""

from __future__ import annotations

import math
import re

from .coded import Cell

UNKNOWN = frozenset(("", "nan", "na", "n/a", "<na>", "null", "none"))
"""Words for "not known" in columns of numbers and of zeros and ones; never in columns of words."""
UNCERTAIN = math.inf
"""What `flag` says of a label that somebody was uncertain of."""
LARGEST = 3e38
"""Beyond this a number is infinite in single precision, and so counts as none."""

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
# fmt: off
_FLAGS = {
    "0": 0.0, "0.0": 0.0, "false": 0.0,
    "1": 1.0, "1.0": 1.0, "true": 1.0,
    "-1": UNCERTAIN, "-1.0": UNCERTAIN, "u": UNCERTAIN, "uncertain": UNCERTAIN,
}
# fmt: on


def blank(cell: Cell) -> bool:
    """Whether a cell of any column is empty; a word such as NA is a word."""
    return cell is None or (isinstance(cell, str) and not cell.strip())


def unknown(cell: Cell) -> bool:
    """Whether a cell of a column of numbers says that its number is not known."""
    return cell is None or (isinstance(cell, str) and cell.strip().casefold() in UNKNOWN)


def real(cell: Cell) -> float | None:
    """The number that a cell holds, with a point or a comma before its decimals; NaN if unknown, None if it is none."""
    if unknown(cell):
        return math.nan
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return float(cell) if -LARGEST < cell < LARGEST else None
    if not isinstance(cell, str):
        return None
    text = cell.strip()
    if _COMMA.fullmatch(text):
        text = text.replace(",", ".")
    number = float(text) if _NUMBER.fullmatch(text) else None
    return number if number is None or -LARGEST < number < LARGEST else None


def flag(cell: Cell) -> float | None:
    """0 or 1, `UNCERTAIN`, or NaN if unknown; None if a cell holds anything else."""
    if unknown(cell):
        return math.nan
    return _FLAGS.get(str(cell).strip().casefold())


def negative(cell: Cell) -> bool:
    """Whether a cell is the number -1, which many tables write for "not known"."""
    return real(cell) == -1


def parts(cell: Cell, separator: str) -> tuple[str, ...]:
    """The words of a cell, each once, in their order."""
    words = cell if isinstance(cell, tuple) else str(cell).split(separator) if cell is not None else ()
    return tuple(dict.fromkeys(word.strip() for word in words if word.strip()))
