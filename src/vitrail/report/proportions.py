"""Proportions of images with their 95 % intervals, as on every page."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Shaped

from ..stats.intervals import Interval, proportion_interval


class Proportion(NamedTuple):
    """A proportion of n images with its 95 % interval."""

    value: float
    interval: Interval
    n: int

    @property
    def num_true(self) -> int:
        """Number of images that the proportion counts."""
        return round(self.value * self.n)


def estimate_proportion(
    mask: Bool[np.ndarray, " n"],
    groups: Shaped[np.ndarray, " n"] | None = None,
    rows: Bool[np.ndarray, " n"] | None = None,
) -> Proportion | None:
    """The proportion of True in a mask, or among some of its rows; None without any.

    The interval is Wilson's, by groups, such as patients, if there are any.
    """
    if rows is not None:
        mask, groups = mask[rows], None if groups is None else groups[rows]
    return Proportion(float(mask.mean()), proportion_interval(mask, groups), len(mask)) if len(mask) else None
