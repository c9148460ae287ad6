"""What a split should show in proportion: the class of a picture, its labels, or how large its numbers are."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int64, Shaped

from .source import Source

BINS = 10
FEW = 5  # known numbers a bin must hold on average


def strata(
    source: Source, rows: Int64[np.ndarray, " n"], column: str = ""
) -> Int64[np.ndarray, " n"] | Bool[np.ndarray, "n K"]:
    """One stratum per picture, or for labels and several numbers the K strata that each picture is in.

    Soft labels count as their most probable class, labels from a half on as present, numbers by quantile. What is
    unknown (NaN) counts for nothing; a single unknown number is a stratum of its own.

    Args:
        column: one of the source's further columns. Its values part each stratum; where a picture is in several, they
            are strata beside them.
    """
    shown = _shown(source, rows)
    if not column:
        return shown
    cells = source.metadata[column]
    _, values = np.unique([str(cells[row]) for row in rows.tolist()], return_inverse=True)
    if shown.ndim == 2:
        return np.concatenate([shown, values[:, None] == np.arange(values.max(initial=-1) + 1)], axis=1)
    return shown * (values.max(initial=0) + 1) + values


def _shown(source: Source, rows: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"] | Bool[np.ndarray, "n K"]:
    """What is to be learnt, as strata."""
    targets = source.targets[rows]
    if source.task == "labels":
        return targets >= 0.5
    if source.task == "number":
        return _one(targets[:, 0]) if targets.shape[1] == 1 else np.concatenate([_each(c) for c in targets.T], axis=1)
    return targets.argmax(1) if source.soft else targets.astype(np.int64, copy=False)


def _one(numbers: Shaped[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """The quantile bin of each number; the one after the last for unknown ones."""
    known = np.isfinite(numbers)
    bins = min(BINS, max(1, int(known.sum()) // FEW))
    edges = np.quantile(numbers[known], np.arange(1, bins) / bins) if known.any() else np.zeros(0)
    return np.where(known, np.searchsorted(edges, numbers, side="right"), bins)


def _each(numbers: Shaped[np.ndarray, " n"]) -> Bool[np.ndarray, "n b"]:
    """Whether each number lies in each bin; unknown ones lie in none."""
    bins = _one(numbers)
    return (bins[:, None] == np.arange(bins.max(initial=0) + 1)) & np.isfinite(numbers)[:, None]
