"""What a person may have meant by a path where nothing lies."""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Iterable
from pathlib import Path

MAX_NAMES = 1000
"""Names that are looked at in a folder."""
MIN_SIMILARITY = 0.7
"""How alike two names must be, of 1."""


def suggest_path(name: str, words: Iterable[str] = ()) -> str:
    """The question "Did you mean ...?", with a blank before it, or nothing.

    Args:
        words: what else it could be, beside what lies where the path should.
    """
    path = Path(name).expanduser()
    meant = {word: word for word in words} | {other: str(path.with_name(other)) for other in _list_neighbours(path)}
    close = difflib.get_close_matches(path.name, meant, n=1, cutoff=MIN_SIMILARITY)
    return f" Did you mean {meant[close[0]]}?" if close else ""


def _list_neighbours(path: Path) -> list[str]:
    """Those of what lies where the path should, of a large folder some; none where nothing can be listed."""
    try:
        with os.scandir(path.parent) as found:
            return [other.name for other in itertools.islice(found, MAX_NAMES)] if path.name else []
    except (OSError, ValueError):
        return []
