"""Proportions of images with their 95 % intervals, as on every page."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Shaped

from ..evaluate.metrics import proportion_interval
from ..stats.intervals import Interval, bootstrap_interval


class Proportion(NamedTuple):
    """A proportion of n images with its 95 % interval."""

    value: float
    interval: Interval
    n: int


def estimate_proportion(
    mask: Bool[np.ndarray, " n"],
    groups: Shaped[np.ndarray, " n"] | None = None,
    rows: Bool[np.ndarray, " n"] | None = None,
) -> Proportion | None:
    """The proportion of True in a mask, or among some of its rows; None without any.

    The interval is Wilson's, or with groups, such as patients, that of a bootstrap over whole groups.
    """
    if rows is not None:
        mask, groups = mask[rows], None if groups is None else groups[rows]
    if not len(mask):
        return None
    resampled = None
    if groups is not None and mask.any() and not mask.all():
        _, group_index = np.unique(groups, return_inverse=True)
        sums = np.stack([np.bincount(group_index, mask), np.bincount(group_index)], 1)  # [groups, 2]
        resampled = bootstrap_interval(sums, lambda rows: float(rows[:, 0].sum() / rows[:, 1].sum()), seed=0)
    interval = proportion_interval(mask, groups, resampled)
    assert interval is not None
    return Proportion(float(mask.mean()), interval, len(mask))
