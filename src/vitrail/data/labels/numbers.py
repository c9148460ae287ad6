"""Read numbers out of a column of texts: its decimal mark, thousands separator and unit are those of all its cells.

Cells are judged together because one cell does not tell: "1,250" is 1250 beside "1,250.5" and 1.25 beside "0,5".
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass

from .codes import CategoricalColumn, Cell

UNKNOWN = frozenset(
    ("", "nan", "-nan", "na", "n/a", "n.a.", "<na>", "null", "none", "?", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan")
)
"""Words for a missing value in columns of numbers and of zeros and ones; never in columns of words."""
DECIMAL_MARKS = {"point": ".", "comma": ","}
LARGEST = 3e38
"""Larger numbers are infinite in single precision, and so are refused."""

_SHEET_ERROR = re.compile(r"#[A-Z][A-Z0-9/_ ]*[!?]?")  # #N/A, #DIV/0!, #NAME?, and what other languages write
_CURRENCY = "[$\u00a2-\u00a5\u20a0-\u20c0]"
_NUMBER = re.compile(
    rf"({_CURRENCY}?) ?([+-]?)({_CURRENCY}?) ?([0-9.,][0-9.,'_ ]*?)([eE][+-]?[0-9]+)?"
    rf" ?({_CURRENCY}|[%\u2030]|\u00b0?[^\W\d_][^\W_]*(?:[/^*.-][^\W_]+)*|\u00b0|)"
)
_GROUPED = re.compile(r"[1-9][0-9]{0,2}(?:([.,'_ ])[0-9]{3})(?:\1[0-9]{3})*|[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}")
_SIGNS = str.maketrans({"\u2212": "-", "\u2019": "'", "\u066b": ".", "\u066c": "'"})
"""The minus of typesetting, the apostrophe, and the Arabic marks for decimals and thousands, after NFKC."""


@dataclass(frozen=True)
class NumberColumn:
    """The numbers in the distinct values of a column."""

    values: tuple[float | None, ...]
    """One per distinct value: NaN if unknown, None if it holds no number."""
    unit: str = ""
    """The unit, percent or currency sign that stands with every number."""
    ambiguous: str = ""
    """A text such as 1,250 if every comma of the column may be a decimal comma or part thousands."""

    def fraction(self, column: CategoricalColumn[Cell]) -> float:
        """Fraction of the known rows of the column that hold a number."""
        pairs = zip(self.values, column.counts().tolist(), strict=True)
        known = [(value, count) for value, count in pairs if value is None or not math.isnan(value)]
        total = sum(count for _, count in known)
        return sum(count for value, count in known if value is not None) / total if total else 0.0


def read_numbers(column: CategoricalColumn[Cell], decimal: str = "auto") -> NumberColumn:
    """Read the distinct values of a column as numbers.

    The decimal mark is the one by which most rows are numbers. Where both read equally many and differ, points are
    decimal points, and commas are ambiguous. A cell with another unit than most holds no number.

    Args:
        decimal: "point" or "comma" where the decimal mark is known.
    """
    parts = [
        _split_number(value) if isinstance(value, str) and not is_unknown(value) else None for value in column.values
    ]
    counts = column.counts().tolist()
    units: Counter[str] = Counter()
    for part, count in zip(parts, counts, strict=True):
        if part is not None:
            units[part.unit] += count
    unit = max(units, key=units.__getitem__, default="")
    readings, rows = {}, {}
    for mark in DECIMAL_MARKS.values() if decimal == "auto" else (DECIMAL_MARKS[decimal],):
        readings[mark] = [part.value(mark) if part and part.unit == unit else None for part in parts]
        rows[mark] = sum(count for value, count in zip(readings[mark], counts, strict=True) if value is not None)
    mark = max(rows, key=rows.__getitem__)  # the point, if equal
    ambiguous = ""
    if len(rows) == 2 and rows["."] == rows[","]:
        differ = [n for n, (one, other) in enumerate(zip(*readings.values(), strict=True)) if one != other]
        ambiguous = next((str(column.values[n]).strip() for n in differ if "," in str(column.values[n])), "")
    values = [_number_of(cell, text) for cell, text in zip(column.values, readings[mark], strict=True)]
    return NumberColumn(tuple(values), unit, ambiguous)


def is_blank(cell: Cell) -> bool:
    """Whether a cell of any column is empty; NA is a word."""
    return cell is None or (isinstance(cell, str) and not cell.strip())


def is_unknown(cell: Cell) -> bool:
    """Whether a cell of a column of numbers is unknown: empty, as pandas spells it, or a spreadsheet's error."""
    if not isinstance(cell, str):
        return cell is None
    text = cell.strip()
    return text.casefold() in UNKNOWN or (text[:1] == "#" and _SHEET_ERROR.fullmatch(text) is not None)


def number_key(text: str) -> str:
    """A number without exponent in its shortest form, such as 1 for 01 and 1.0, of any length; "" if it is none."""
    if not re.fullmatch(r"[+-]?[0-9]+(\.[0-9]*)?", text):
        return ""
    whole, _, fraction = text.lstrip("+-").partition(".")
    key = f"{whole.lstrip('0') or '0'}.{fraction.rstrip('0')}".rstrip(".")
    return f"-{key}" if text[0] == "-" and key != "0" else key


@dataclass(frozen=True)
class _Number:
    """The parts of a text that may be a number."""

    sign: str
    digits: str
    """With decimal mark and thousands separators."""
    exponent: str
    unit: str

    def value(self, mark: str) -> float | None:
        """The number with this decimal mark; None if the digits are not written so."""
        whole, point, fraction = self.digits.rpartition(mark) if mark in self.digits else (self.digits, "", "")
        if point and not whole and not fraction:
            return None
        grouped = _GROUPED.fullmatch(whole)
        if grouped and mark not in whole:
            whole = re.sub("[^0-9]", "", whole)
        if (whole and not whole.isdigit()) or (fraction and not fraction.isdigit()):
            return None
        return float(f"{self.sign}{whole or '0'}.{fraction or '0'}{self.exponent}")


def _split_number(cell: str) -> _Number | None:
    text = cell.strip()
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
        text = "".join(str(unicodedata.decimal(letter)) if letter.isdecimal() else letter for letter in text)
    matched = _NUMBER.fullmatch(text)
    if matched is None or not any(letter.isdigit() for letter in matched[4]):
        return None
    before, sign, between, digits, exponent, after = matched.groups()
    unit = before or between or after
    return _Number(sign, digits.strip(), exponent or "", unit)


def _number_of(cell: Cell, read: float | None) -> float | None:
    if is_unknown(cell):
        return math.nan
    number = cell if isinstance(cell, int | float) and not isinstance(cell, bool) else read
    return float(number) if number is not None and -LARGEST < number < LARGEST else None
