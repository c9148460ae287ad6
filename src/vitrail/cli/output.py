"""Answers on standard output: text for people, JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def print_json(value: Any) -> None:
    """One JSON value, indented; NaN and infinity are refused, because JSON has no word for them."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
