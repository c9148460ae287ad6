"""Is one map truer than another, or is it luck? Paired differences over the same pictures, and one verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64, Shaped

from ...stats.intervals import Interval, bootstrap_interval
from .removal import Way

Verdict = Literal["truer", "less true", "inconclusive"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How much larger one method's gap is than another's, on the same pictures, for one way of taking patches away."""

    way: Way
    mean: float
    interval: Interval
    """95 %, by drawing pictures (or whole groups of them) with replacement."""

    @property
    def sure(self) -> bool:
        """The interval excludes 0."""
        return self.interval.low > 0 or self.interval.high < 0


def differences(
    first: Mapping[Way, Float64[np.ndarray, " B"]],
    second: Mapping[Way, Float64[np.ndarray, " B"]],
    seed: int = 0,
    groups: Shaped[np.ndarray, " B"] | None = None,
) -> tuple[Difference, ...]:
    """The first method's gaps less the second's, for every way that both have been measured in.

    Args:
        groups: of each picture, such as its patient: whole groups are drawn then.
    """
    found = []
    for way in first:
        apart = first[way] - second[way]
        interval = bootstrap_interval(apart, lambda rows: float(rows.mean()), seed, groups=groups)
        found.append(Difference(way=way, mean=float(apart.mean()), interval=interval))
    return tuple(found)


def verdict(found: tuple[Difference, ...]) -> Verdict:
    """The first is truer, or less true, if every way says so and no interval holds 0; otherwise nobody knows."""
    signs = {np.sign(one.mean) for one in found}
    if len(signs) != 1 or not all(one.sure for one in found):
        return "inconclusive"
    return "truer" if signs == {1.0} else "less true"
