"""Our own CSV files: text that a spreadsheet would run, or swallow, made plain, and lines that read back as written."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")


def escape_cell(cell: str) -> str:
    """The cell with an apostrophe before it if a spreadsheet would not take it as plain text."""
    return "'" + cell if cell.startswith(FORMULA) else cell


def unescape_cell(cell: str) -> str:
    """The text that `guarded` was given."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULA) else cell


def format_csv_lines(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """One line of CSV for each row, ending in a line feed; names that hold a lone carriage return stay whole."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\r\n")  # only so does the module quote a lone carriage return
    for row in rows:
        table.writerow(row)
        yield text.getvalue().removesuffix("\r\n") + "\n"
        text.seek(0)
        text.truncate()
