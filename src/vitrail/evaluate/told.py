"""A figure with its interval as the two fields that every table of figures keeps it in."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..stats.areas import Area
from ..stats.intervals import Interval, wilson


def told(name: str, value: float, span: Interval | None) -> dict[str, Any]:
    """`name` and `name_interval`; nothing where the figure could not be measured."""
    return {name: float(value), f"{name}_interval": span} if np.isfinite(value) else {}


def of_share(right: np.ndarray, groups: np.ndarray | None, drawn: Interval | None) -> Interval | None:
    """The interval of a share of pictures: Wilson's, or by groups that of the drawn samples.

    Samples of a share of 0 or 1 are all alike, so there the groups are counted as if each were one picture.
    """
    if not len(right):
        return None
    if groups is None:
        return wilson(int(right.sum()), len(right))
    if 0 < right.sum() < len(right):
        return drawn
    n = len(np.unique(groups))
    return wilson(n if right.all() else 0, n)


def of_area(found: Area) -> dict[str, Any]:
    """An area under the ROC curve in the same way."""
    return told("auroc", found.value, found.interval())
