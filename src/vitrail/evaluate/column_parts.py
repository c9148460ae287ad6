"""The values of a column as parts of the pictures: one part a value, four for many numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64

VALUES = 12
"""Numbers with more values than this are cut at their quartiles."""
MOST = 100
"""Words with more values than this part nothing."""
EMPTY = "(empty)"


class NotParted(NamedTuple):
    """A column that says nothing about parts."""

    reason: str


def parted(values: Sequence[str]) -> dict[str, Bool[np.ndarray, " n"]] | NotParted:
    """Which pictures have each value, the most frequent first, or lie in each range of numbers, rising.

    Empty cells are a part of their own, the last one.
    """
    texts = np.array([value.strip() for value in values], dtype=object)
    there = texts != ""
    names, counts = np.unique(texts[there].astype(str), return_counts=True)
    if len(names) + (not there.all()) < 2:
        return NotParted(f"it is {str(names[0])!r} everywhere" if len(names) else "it is empty")
    numbers = _numbers(texts, there) if len(names) > VALUES else None
    if numbers is None or _is_name(texts[there], len(names)):
        if len(names) == there.sum():
            return NotParted("every picture has a value of its own")
        if len(names) > MOST:
            return NotParted(f"it has {len(names):,} values, more than {MOST}")
        found = {str(name): texts == name for name in names[np.argsort(-counts, kind="stable")]}
    else:
        found = _quartiles(numbers, there)
        if len(found) + (not there.all()) < 2:
            return NotParted("three of four values are the largest")
    return found if there.all() else {**found, EMPTY: ~there}


def _numbers(texts: np.ndarray, there: np.ndarray) -> Float64[np.ndarray, " n"] | None:
    """Every cell as a number, NaN for empty ones; None if one of them is something else."""
    try:
        numbers = np.array([float(text) if text else np.nan for text in texts.tolist()], np.float64)
    except ValueError:
        return None
    return numbers if np.isfinite(numbers[there]).all() else None


def _is_name(texts: np.ndarray, different: int) -> bool:
    """Whether whole numbers only tell the pictures apart, as a running number does."""
    return different == len(texts) and all(text.lstrip("+-").isdigit() for text in texts.tolist())


def _quartiles(numbers: np.ndarray, there: np.ndarray) -> dict[str, Bool[np.ndarray, " n"]]:
    """Up to four ranges that hold about as many pictures each; each holds its upper end."""
    known = numbers[there]
    edges = np.unique(np.quantile(known, [0.25, 0.5, 0.75], method="inverted_cdf"))
    edges = edges[edges < known.max()]
    place = np.where(there, np.searchsorted(edges, np.where(there, numbers, 0.0), side="left"), -1)
    found = {}
    for k in range(len(edges) + 1):
        low, high = (f"{edges[at]:.10g}" if 0 <= at < len(edges) else "" for at in (k - 1, k))
        name = f"over {low} to {high}" if low and high else f"to {high}" if high else f"over {low}"
        found[name] = place == k
    return found
