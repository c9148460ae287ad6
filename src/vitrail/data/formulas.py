"""Text cells of our own CSV files: a spreadsheet would run, or swallow, one that begins like a formula."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")


def guarded(cell: str) -> str:
    """The cell with an apostrophe before it if a spreadsheet would not take it as plain text."""
    return "'" + cell if cell.startswith(FORMULA) else cell


def unguarded(cell: str) -> str:
    """The text that `guarded` was given."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULA) else cell
