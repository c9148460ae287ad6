"""Suggest a path for one that does not exist."""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Iterable
from pathlib import Path

MAX_NAMES = 1000
"""Names that are compared in a folder."""
MIN_SIMILARITY = 0.7
"""Smallest similarity of two names, in 0..1."""


def suggest_path(name: str, words: Iterable[str] = ()) -> str:
    """The question " Did you mean ...?", or an empty string.

    Args:
        words: further candidates beside the other files of the path's folder.
    """
    path = Path(name).expanduser()
    candidates = {word: word for word in words} | {other: str(path.with_name(other)) for other in _list_siblings(path)}
    close = difflib.get_close_matches(path.name, candidates, n=1, cutoff=MIN_SIMILARITY)
    return f" Did you mean {candidates[close[0]]}?" if close else ""


def _list_siblings(path: Path) -> list[str]:
    """Names in the path's folder, at most MAX_NAMES; empty if it cannot be listed."""
    try:
        with os.scandir(path.parent) as entries:
            return [other.name for other in itertools.islice(entries, MAX_NAMES)] if path.name else []
    except (OSError, ValueError):
        return []
