"""A figure with its interval as the two fields that every table of figures keeps it in."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..stats.areas import Area
from ..stats.intervals import Interval


def told(name: str, value: float, span: Interval | None) -> dict[str, Any]:
    """`name` and `name_interval`; nothing where the figure could not be measured."""
    return {name: float(value), f"{name}_interval": span} if np.isfinite(value) else {}


def of_area(found: Area) -> dict[str, Any]:
    """An area under the ROC curve in the same way."""
    return told("auroc", found.value, found.interval())
