"""How far a figure measured on n pictures may lie from the truth: closed forms and the bootstrap."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from ..errors import UsageError


class Interval(NamedTuple):
    """A lower and an upper bound, in the unit of the figure between them."""

    low: float
    high: float


def wilson(successes: int, n: int, level: float = 0.95) -> Interval:
    """The score interval of a proportion: honest with few pictures, and never outside 0..1.

    Without pictures nothing is known, so n = 0 gives (0, 1).

    Args:
        successes: how many of the n came out right.
        level: how often such an interval holds the true proportion, a fraction.

    Raises:
        UsageError: successes outside 0..n, or a level outside 0..1.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference", JASA 22;
    recommended by Brown, Cai and DasGupta 2001, Statistical Science 16.
    """
    _check_level(level)
    if not 0 <= successes <= n:
        raise UsageError(f"successes must lie between 0 and n. Got successes={successes}, n={n}.")
    if n == 0:
        return Interval(0.0, 1.0)
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    low = 0.0 if successes == 0 else centre - reach  # exact at the ends, where rounding would leave 1e-18
    high = 1.0 if successes == n else centre + reach
    return Interval(low, high)


def bootstrap(
    values: np.ndarray, statistic: Callable[[np.ndarray], float], seed: int, n: int = 1000, level: float = 0.95
) -> Interval:
    """The percentile bootstrap: the statistic of n samples, drawn with replacement from the rows of `values`.

    Samples on which the statistic is not a finite number are left out. The same seed gives the same interval.

    Args:
        values: one row per picture (or per patient, where pictures of one patient belong together).
        statistic: called with an array shaped like `values`; gives one number.
        n: samples drawn; 1,000 are enough for two digits of a 95 % interval.

    Raises:
        UsageError: no rows, no samples, a level outside 0..1, or a statistic that is never finite.

    Source: Efron 1979, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7;
    Efron and Tibshirani 1993, chapter 13.
    """
    _check_level(level)
    if len(values) == 0 or n < 1:
        raise UsageError(f"A bootstrap needs at least 1 row and 1 sample. Got {len(values)} rows and n={n}.")
    generator = np.random.default_rng(seed)
    rows = len(values)
    drawn = np.array([statistic(values[generator.integers(0, rows, rows)]) for _ in range(n)], dtype=np.float64)
    finite = drawn[np.isfinite(drawn)]
    if not len(finite):
        raise UsageError(f"The statistic must be a finite number on some samples. It was not on any of {n}.")
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise UsageError(f"level must lie between 0 and 1, for example 0.95. Got {level}.")
