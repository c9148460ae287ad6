"""Write CSV cells safely against formula injection in spreadsheets, and read them back unchanged."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")


def escape_cell(cell: str) -> str:
    """Prefix a cell with an apostrophe if a spreadsheet would not treat it as plain text."""
    return "'" + cell if cell.startswith(FORMULA) else cell


def unescape_cell(cell: str) -> str:
    """The inverse of `escape_cell`."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULA) else cell


def format_csv_lines(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Format each row as a CSV line that ends in a line feed; a lone carriage return in a cell is quoted."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\r\n")  # only with this does the csv module quote a lone carriage return
    for row in rows:
        table.writerow(row)
        yield text.getvalue().removesuffix("\r\n") + "\n"
        text.seek(0)
        text.truncate()
