"""Shares of pictures with their intervals, as every page says them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Shaped

from ..evaluate.metrics import proportion_interval
from ..stats.intervals import Interval, bootstrap_interval


class Proportion(NamedTuple):
    """So many of n, with its 95 % interval."""

    value: float
    interval: Interval
    n: int


def estimate_proportion(
    mask: Bool[np.ndarray, " n"], groups: Shaped[np.ndarray, " n"] | None = None
) -> Proportion | None:
    """Of some pictures those that are so; None of no pictures.

    The interval is Wilson's; with groups, such as patients, that of a bootstrap that draws whole groups.
    """
    if not len(mask):
        return None
    drawn = None if groups is None or mask.all() or not mask.any() else _bootstrap_proportion(mask, groups)
    interval = proportion_interval(mask, groups, drawn)
    assert interval is not None
    return Proportion(float(mask.mean()), interval, len(mask))


def _bootstrap_proportion(mask: np.ndarray, groups: np.ndarray) -> Interval:
    """Of sums over groups, so that a sample is as cheap as there are groups."""
    _, places = np.unique(groups, return_inverse=True)
    sums = np.stack([np.bincount(places, mask), np.bincount(places)], 1)  # [groups, 2]
    return bootstrap_interval(sums, lambda rows: float(rows[:, 0].sum() / rows[:, 1].sum()), seed=0)
