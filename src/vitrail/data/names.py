"""Words that readers look for in the names of folders and files."""

from __future__ import annotations

import re

# fmt: off
SPLIT_NAMES = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}
# fmt: on


def natural(name: str) -> tuple[tuple[str | tuple[int, str], ...], str]:
    """Sorts 1, 2, 10 by value, however long numbers are, and words without regard to case."""
    parts = re.split(r"([0-9]+)", name.casefold())
    return tuple(_value(part) if place % 2 else part for place, part in enumerate(parts)), name


def _value(digits: str) -> tuple[int, str]:
    """What orders whole numbers as their values do, of any length."""
    plain = digits.lstrip("0")
    return len(plain), plain
