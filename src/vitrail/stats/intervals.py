"""Confidence intervals: Wilson's for proportions, Gaffke's for means of losses, and the percentile bootstrap; also over
groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64, Shaped

from ..errors import UsageError
from ..formatting import format_count

RARE_COUNT = 3
"""Errors up to which an interval of a proportion takes a Poisson bound."""
MIN_UNITS = 8
"""Images, or groups, below which the spread of their values is not known well enough for an interval."""
MOST_WIDENING = 3.0
"""How many times Student's quantile a bootstrap-t may take; few units draw samples with next to no error."""
CHUNK_NUMBERS = 4_000_000
"""Random numbers that are drawn at once."""


class Interval(NamedTuple):
    """A lower and an upper bound."""

    low: float
    high: float


def wilson_interval(successes: int, n: int, level: float = 0.95) -> Interval:
    """Wilson score interval of a proportion: accurate for small n, and never outside 0..1; (0, 1) for n = 0.

    Args:
        successes: number of successes among n.
        level: confidence level, a fraction.

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
    return wilson_interval_of_share(successes / n, n, level)


def proportion_interval(
    mask: Bool[np.ndarray, " n"], groups: Shaped[np.ndarray, " n"] | None = None, level: float = 0.95
) -> Interval:
    """Wilson score interval of the proportion of True in a mask; (0, 1) for an empty one.

    With groups, such as patients, the images count as `effective_count` independent ones, as if all of a group were
    right or wrong together. That is the only count under which fewer errors never give a lower bound: without an error
    nothing shows how alike the images of a group are, and whatever is assumed there limits every other interval.
    """
    _check_level(level)
    if not len(mask):
        return Interval(0.0, 1.0)
    return wilson_interval_of_share(float(mask.mean()), len(mask) if groups is None else effective_count(groups), level)


def effective_count(groups: Shaped[np.ndarray, " n"]) -> float:
    """Number of independent images that are worth as much as these groups, if the images of a group are all alike.

    The number of groups where all are equally large, fewer where some are larger.

    Source: Kish 1965, "Survey sampling", section 5.4 (design effect) with an intraclass correlation of 1.
    """
    sizes = np.unique(groups, return_counts=True)[1].astype(np.float64)
    return float(sizes.sum() ** 2 / np.square(sizes).sum())


def wilson_interval_of_share(share: float, n: float, level: float = 0.95) -> Interval:
    """As `wilson_interval`, of a share of n images, which need not be whole numbers.

    Two corrections, with which it covers every rate of 0.5 and more in at least 93 of 100 studies, whatever n is. Of
    few images 1.96 is raised by 1 / n. And one error of 100 would exclude an error rate of 1 in 1,000, of which every
    tenth study of that size has one: with up to RARE_COUNT errors the bound on their side is that of a Poisson count.

    Source: Brown, Cai and DasGupta 2001, Statistical Science 16, section 4.1.1, for the Poisson bound; the other is
    own.
    """
    z = NormalDist().inv_cdf((1 + level) / 2) * (1 + 1 / n)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    low = min(centre - reach, _rare_rate(share * n, n, level)) if share else 0.0  # exact at the ends, without rounding
    high = max(centre + reach, 1 - _rare_rate((1 - share) * n, n, level)) if share < 1 else 1.0
    return Interval(low, high)


def _rare_rate(count: float, n: float, level: float) -> float:
    """Lower bound of the rate of a rare event that was seen so often among n; 1 if it is not rare."""
    from scipy.special import gammaincinv

    if count > RARE_COUNT + 1e-9:
        return 1.0
    return float(gammaincinv(max(count, 1.0), 1 - level)) * min(count, 1.0) / n  # of less than one image in proportion


def mean_of_rates_interval(
    rates: Sequence[tuple[float, float]], most: float | None = None, level: float = 0.95
) -> Interval:
    """Interval of the mean of rates of different images, at least one.

    Three intervals, none of which covers everywhere. MOVER joins the Wilson intervals of the rates, and misses the mean
    of many rates near 1. Wilson's of the mean with the variance of equal rates misses that of a small class that is
    worse. The wider of both holds; and Wilson's with the variance of errors that all lie in the smallest class, where
    one weighs most, is never too narrow and limits it.

    Args:
        rates: each with its number of images, or their `effective_count`.
        most: `effective_count` of all images, where groups may have images in several of the rates, which are not
            independent then.

    Source: Zou and Donner 2008, "Construction of confidence limits about effect measures", for MOVER; the rest is own.
    """
    count, value = len(rates), sum(rate for rate, _ in rates) / len(rates)
    intervals = [(rate, wilson_interval_of_share(rate, n, level)) for rate, n in rates]
    below = sum((rate - interval.low) ** 2 for rate, interval in intervals) ** 0.5 / count
    above = sum((interval.high - rate) ** 2 for rate, interval in intervals) ** 0.5 / count
    equal = wilson_interval_of_share(value, count**2 / sum(1 / n for _, n in rates), level)
    worst = wilson_interval_of_share(value, count * min(n for _, n in rates), level)
    low, high = max(worst.low, min(value - below, equal.low)), min(worst.high, max(value + above, equal.high))
    shared = Interval(1.0, 0.0) if most is None else wilson_interval_of_share(value, most, level)
    return Interval(min(low, shared.low), max(high, shared.high))


def bounded_mean_intervals(
    values: Float[np.ndarray, "n m"],
    most: Sequence[float],
    seed: int,
    samples: int = 1000,
    level: float = 0.95,
    groups: Shaped[np.ndarray, " n"] | None = None,
) -> list[Interval]:
    """Intervals of means of m values of 0 or more, of which none is larger than `most`, such as losses.

    A bootstrap cannot draw the rare large losses that no image has shown: of good models with few images it covered
    the true log loss in half of the studies. Here every image has a random weight, and one more weight falls on a loss
    of `most` for the upper bound and of 0 for the lower one. Of losses of 0 and 1 these are the Clopper-Pearson bounds.
    A smaller loss never gives a larger bound.

    Args:
        most: of each column; its largest value if that is larger.
        samples: number of random weightings.
        groups: group of each image, such as its patient: groups have the weights, and the loss that was not seen is
            that of a group of `effective_count` size.

    Source: Gaffke 2005, "Three test statistics for a nonparametric one-sided hypothesis on the mean of a nonnegative
    variable"; Learned-Miller and Thomas 2020, "A new confidence interval for the mean of a bounded random variable".
    """
    _check_level(level)
    sums, sizes = values.astype(np.float64), np.ones(len(values))
    if groups is not None:
        numbers = np.unique(groups, return_inverse=True)[1]
        sums = np.stack([np.bincount(numbers, column) for column in sums.T], axis=1)
        sizes = np.bincount(numbers).astype(np.float64)
    unseen = float(np.square(sizes).sum() / sizes.sum())
    bounds = np.maximum(np.asarray(most, np.float64), values.max(0))
    generator, lows, highs = np.random.default_rng(seed), [], []
    for count in _chunks(samples, len(sums)):
        weights = generator.standard_exponential((count, len(sums) + 1))
        totals, images = weights[:, :-1] @ sums, weights @ np.append(sizes, unseen)
        lows.append(totals / images[:, None])
        highs.append((totals + weights[:, -1:] * unseen * bounds) / images[:, None])
    tail = (1 - level) / 2
    low, high = np.quantile(np.concatenate(lows), tail, axis=0), np.quantile(np.concatenate(highs), 1 - tail, axis=0)
    return [Interval(*pair) for pair in zip(low.tolist(), high.tolist(), strict=True)]


def bootstrap_counts(
    cells: Int64[np.ndarray, " n"],
    num_cells: int,
    seed: int,
    samples: int = 1000,
    groups: Shaped[np.ndarray, " n"] | None = None,
) -> Int64[np.ndarray, "samples num_cells"]:
    """How many images of each cell, such as those of a confusion matrix, every bootstrap sample of images has.

    Args:
        groups: group of each image, such as its patient; whole groups are drawn.
    """
    generator, counts = np.random.default_rng(seed), []
    if groups is not None:
        numbers = np.unique(groups, return_inverse=True)[1]
        units = int(numbers.max()) + 1
        table = np.bincount(numbers * num_cells + cells, minlength=units * num_cells).reshape(units, num_cells)
    for count in _chunks(samples, len(cells)):
        if groups is not None:
            drawn = generator.integers(0, units, (count, units)) + units * np.arange(count)[:, None]
            counts.append(np.bincount(drawn.ravel(), minlength=count * units).reshape(count, units) @ table)
        else:
            drawn = (
                cells[generator.integers(0, len(cells), (count, len(cells)))] + num_cells * np.arange(count)[:, None]
            )
            counts.append(np.bincount(drawn.ravel(), minlength=count * num_cells).reshape(count, num_cells))
    return np.concatenate(counts)


def _chunks(samples: int, units: int) -> Iterator[int]:
    """The samples in portions whose random numbers fit into the memory."""
    portion = max(1, CHUNK_NUMBERS // max(units, 1))
    for start in range(0, samples, portion):
        yield min(portion, samples - start)


def bootstrap_t_intervals(
    values: Float[np.ndarray, "n m"],
    functions: Callable[[np.ndarray], np.ndarray],
    seed: int,
    samples: int = 1000,
    level: float = 0.95,
    groups: Shaped[np.ndarray, " n"] | None = None,
    widening: Sequence[float] | None = None,
) -> list[Interval | None]:
    """Bootstrap-t intervals of smooth functions of the means of m values, such as the log of a mean squared error.

    Every sample is measured in its own standard error, by the delta method over images or groups, so that a sample
    without the few large values, which has a small error, has a wide interval. The quantiles are at least those of
    Student's t, at most MOST_WIDENING times those, and then taken 1 + 4 / units times: of a dozen groups with skewed
    values they are too small otherwise.

    Args:
        functions: from complex means [..., m] to values [..., k]; their derivatives are taken by complex steps.
        groups: group of each image, such as its patient.
        widening: how many times as wide the interval of each function is taken; 1 by default.

    Returns:
        An interval of each function; None with fewer than MIN_UNITS images or groups, or where nothing varies.

    Source: Efron and Tibshirani 1993, "An introduction to the bootstrap", section 12.5; the widening is own.
    """
    from scipy.special import stdtrit

    _check_level(level)
    numbers = np.arange(len(values)) if groups is None else np.unique(groups, return_inverse=True)[1]
    columns = (np.ones(len(values)), *values.astype(np.float64).T)
    sums = np.stack([np.bincount(numbers, column) for column in columns], axis=1)  # [units, 1 + m]
    units, width = sums.shape
    if units < MIN_UNITS:
        with np.errstate(invalid="ignore", divide="ignore"):
            return [None] * len(functions(np.ones(width - 1, complex)))
    products = (sums[:, :, None] * sums[:, None, :]).reshape(units, -1)

    def measure(totals: np.ndarray, squares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values and standard errors [S, k] from summed columns [S, 1 + m] and their summed products."""
        steps = totals[:, None] + 1e-30j * np.eye(width)  # [S, 1 + m, 1 + m]
        found = functions(steps[..., 1:] / steps[..., :1])  # [S, 1 + m, k]
        slopes = found.imag * 1e30
        spread = np.einsum("sik,sij,sjk->sk", slopes, squares.reshape(-1, width, width), slopes)
        return found.real[:, 0], np.sqrt(np.maximum(spread, 0) * units / (units - 1))

    with np.errstate(invalid="ignore", divide="ignore"):
        value, error = (one[0] for one in measure(sums.sum(0)[None], products.sum(0)[None]))
        generator, distances = np.random.default_rng(seed), []
        for count in _chunks(samples, units):
            drawn = generator.integers(0, units, (count, units)) + units * np.arange(count)[:, None]
            weights = np.bincount(drawn.ravel(), minlength=count * units).reshape(count, units).astype(np.float64)
            values_of_samples, errors = measure(weights @ sums, weights @ products)
            distances.append((values_of_samples - value) / errors)
    tail, least = (1 - level) / 2, float(stdtrit(units - 1, (1 + level) / 2))
    intervals: list[Interval | None] = []
    wider = np.ones_like(value) if widening is None else np.array(widening)
    columns_of_functions = zip(value.tolist(), (error * wider).tolist(), np.concatenate(distances).T, strict=True)
    for middle, one, column in columns_of_functions:
        finite = column[np.isfinite(column)]
        if not (np.isfinite(middle) and np.isfinite(one) and one > 0 and len(finite)):
            intervals.append(None)
            continue
        low, high = np.clip(np.quantile(finite, [tail, 1 - tail]), -MOST_WIDENING * least, MOST_WIDENING * least)
        reach = one * (1 + 4 / units)
        intervals.append(Interval(float(middle - reach * max(high, least)), float(middle - reach * min(low, -least))))
    return intervals


def bootstrap_interval(
    values: np.ndarray,
    statistic: Callable[[np.ndarray], float],
    seed: int,
    n: int = 1000,
    level: float = 0.95,
    groups: np.ndarray | None = None,
) -> Interval:
    """Expanded percentile bootstrap of n samples, drawn with replacement from the rows of `values`.

    The interval is widened by the number of rows, or groups, as a t interval is wider than a normal one. Samples with a
    statistic that is not finite are left out. The same seed gives the same interval.

    Args:
        values: one row per image.
        statistic: from rows of `values` to one number.
        n: number of samples; 1,000 are enough for two digits of a 95 % interval.
        groups: group of each row, such as its patient. Whole groups are resampled, because images of one patient are
            correlated.

    Raises:
        UsageError: no rows, no samples, a level outside 0..1, or a statistic that is never finite.

    Source: Efron 1979, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7;
    Efron and Tibshirani 1993, chapter 13; groups as in Davison and Hinkley 1997, section 3.8.
    """
    (interval,) = bootstrap_intervals(values, lambda rows: np.array([statistic(rows)]), seed, n, level, groups)
    if interval is None:
        raise UsageError(f"The statistic must be a finite number on some samples. It was not on any of {n}.")
    return interval


def bootstrap_intervals(
    values: np.ndarray,
    statistics: Callable[[np.ndarray], np.ndarray],
    seed: int,
    n: int = 1000,
    level: float = 0.95,
    groups: np.ndarray | None = None,
) -> list[Interval | None]:
    """Expanded percentile bootstrap of several statistics on the same samples; None for one that is never finite.

    Args:
        statistics: from rows of `values` to a vector of fixed length. The others are as in `bootstrap_interval`.
    """
    _check_level(level)
    samples = bootstrap_samples(values, statistics, seed, n, groups)
    return percentile_intervals(samples, len(values) if groups is None else len(np.unique(groups)), level)


def bootstrap_samples(
    values: np.ndarray,
    statistics: Callable[[np.ndarray], np.ndarray],
    seed: int,
    n: int = 1000,
    groups: np.ndarray | None = None,
) -> Float[np.ndarray, "n ..."]:
    """Statistics of n bootstrap samples of rows, or of whole groups; arguments as in `bootstrap_intervals`."""
    if len(values) == 0 or n < 1:
        raise UsageError(
            f"A bootstrap needs at least 1 row and 1 sample. Got {format_count(len(values), 'row')} and n={n}."
        )
    return np.stack([statistics(values[rows]) for rows in _resample_rows(len(values), groups, seed, n)])


def percentile_intervals(samples: Float[np.ndarray, "n m"], units: int, level: float = 0.95) -> list[Interval | None]:
    """Expanded percentile intervals of m statistics of n bootstrap samples; None for one that is never finite.

    Args:
        units: number of images, or groups, that were drawn from.
    """
    tail = _tail_fraction(units, level)
    intervals: list[Interval | None] = []
    for column in samples.astype(np.float64).T:
        finite = column[np.isfinite(column)]
        intervals.append(Interval(*np.quantile(finite, [tail, 1 - tail]).tolist()) if len(finite) else None)
    return intervals


def student_intervals(
    values: Float[np.ndarray, " m"],
    samples: Float[np.ndarray, "n m"],
    freedom: Float[np.ndarray, " m"],
    is_share: Bool[np.ndarray, " m"],
    level: float = 0.95,
) -> list[Interval | None]:
    """Intervals of m statistics by the deviation of their bootstrap samples and Student's t; None for one that is not
    finite, or has less than one degree of freedom.

    Of few groups they hold the truth more often than percentiles: of five groups of masks in 95 of 100 studies instead
    of 92 (EXPERIMENTS.md).

    Args:
        values, samples: of all rows, and of `bootstrap_samples`; those that are not finite are left out.
        freedom: the units that tell of each statistic, less one.
        is_share: statistics within 0..1. Their intervals are symmetric in arcsin(sqrt(x)), in which the deviation of a
            share hardly depends on it (Bartlett 1936), and so never end outside.
    """
    from scipy.special import stdtrit

    intervals: list[Interval | None] = []
    for value, column, degrees, share in zip(values, samples.T, freedom, is_share, strict=True):
        if not np.isfinite(value) or degrees < 1:
            intervals.append(None)
            continue
        each = np.append(column[np.isfinite(column)], value)
        each = np.arcsin(np.sqrt(each.clip(0, 1))) if share else each
        reach = stdtrit(degrees, (1 + level) / 2) * np.sqrt((degrees + 1) / degrees) * each[:-1].std()
        ends = each[-1] + np.array([-reach, reach])
        intervals.append(Interval(*(np.sin(ends.clip(0, np.pi / 2)) ** 2 if share else ends).tolist()))
    return intervals


def _tail_fraction(units: int, level: float) -> float:
    """Fraction of the samples outside the interval at either end, corrected for small n.

    The plain fraction would be (1 - level) / 2. Bootstrap samples of n rows have a variance that is too small by the
    factor (n - 1) / n, and the normal distribution that percentiles imitate has shorter tails than Student's.

    Source: the expanded percentile interval of Hesterberg 2015, "What teachers should know about the bootstrap", The
    American Statistician 69.
    """
    from scipy.special import ndtr, stdtrit

    if units < 2:
        return 0.0
    return float(ndtr(-np.sqrt(units / (units - 1)) * stdtrit(units - 1, (1 + level) / 2)))


def _resample_rows(rows: int, groups: np.ndarray | None, seed: int, n: int) -> Iterator[np.ndarray]:
    """Row indices of n bootstrap samples."""
    generator = np.random.default_rng(seed)
    if groups is None:
        for _ in range(n):
            yield generator.integers(0, rows, rows)
        return
    if len(groups) != rows:
        raise UsageError(f"Every row needs its group. Got {rows} rows and {format_count(len(groups), 'group')}.")
    _, numbers, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order, starts = np.argsort(numbers, kind="stable"), np.cumsum(sizes) - sizes  # rows, group after group
    for _ in range(n):
        drawn = generator.integers(0, len(sizes), len(sizes))
        ends = np.cumsum(sizes[drawn])
        moved = np.repeat(starts[drawn] - (ends - sizes[drawn]), sizes[drawn])  # from places in the sample to `order`
        yield order[moved + np.arange(ends[-1])]


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise UsageError(f"level must lie between 0 and 1, for example 0.95. Got {level}.")
