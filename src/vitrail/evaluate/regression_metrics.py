"""Regression metrics of stored predictions, with 95 % intervals: MAE, RMSE, R2, Spearman, bias, limits of agreement.

Unknown targets are left out of every metric. Every metric can be recomputed from `predictions/test.csv` and the mean of
the training targets, which is the constant prediction to compare with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import config
from ..stats.intervals import MIN_UNITS, Interval, bootstrap_t_intervals
from .metrics import describe_images, metric_fields, no_targets_error, require_finite
from .predictions import RegressionPredictions

Span = tuple[float, float]
REGRESSION_METRICS = ("mae", "rmse", "r2", "spearman", "bias")
AGREEMENT_Z = 1.96
"""Standard deviations around the mean that hold 95 % of a normal distribution."""
SQUARED_WIDENING = 1.05
"""How many times as wide intervals of squared errors are taken; heavy tails leave the bootstrap-t at 92 % otherwise."""
MIN_SQUARED = 20
"""Images, or groups, below which figures of squared errors have no interval: one error may outweigh all others."""


@dataclass(frozen=True, kw_only=True)
class PerColumnMetrics:
    """Metrics of one column; None where the split cannot show them, such as R2 of constant targets."""

    name: str
    n: int
    """Images with a known target."""
    mae: float | None = None
    """Mean absolute error, in the column's unit."""
    mae_interval: Span | None = None
    rmse: float | None = None
    """Root of the mean squared error, in the column's unit."""
    rmse_interval: Span | None = None
    r2: float | None = None
    """Coefficient of determination; below 0 the predictions are worse than the mean of the targets."""
    r2_interval: Span | None = None
    spearman: float | None = None
    """Rank correlation of predictions and targets; None where all predictions are equal."""
    spearman_interval: Span | None = None
    bias: float | None = None
    """Mean of prediction minus target, in the column's unit."""
    bias_interval: Span | None = None
    agreement: Span | None = None
    """Limits of agreement (Bland and Altman): about 95 % of prediction minus target lie between them."""
    agreement_intervals: tuple[Span, Span] | None = None
    """Of the lower and of the upper limit."""
    constant: float | None = None
    """The mean of the training targets, if known."""
    constant_mae: float | None = None
    """Mean absolute error of predicting that constant."""
    constant_rmse: float | None = None


@dataclass(frozen=True, kw_only=True)
class RegressionMetrics:
    """All metrics of one split; intervals are 95 %, over images or whole groups.

    Those of errors and R2 are bootstrap-t on the log scale; that of the rank correlation is Fisher's with the delta
    method. With fewer than MIN_UNITS images or groups there are none, with fewer than MIN_SQUARED none of RMSE, R2 and
    the limits of agreement.
    """

    split: str
    n: int
    """Images with at least one known number."""
    groups: int | None = None
    """Number of groups, such as patients, if there are groups."""
    per_column: tuple[PerColumnMetrics, ...]
    r2: float | None = None
    """Mean over the columns that have one."""

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers, as in report.json; unmeasured values are absent."""
        return config.write(self)

    def headline(self) -> str:
        """The primary metric in a sentence without its full stop."""
        where = f"on {describe_images(self.n, self.split)}"
        if len(self.per_column) > 1:
            each = "; ".join(f"{one.name} {_format_number(one.mae)}" for one in self.per_column[:5])
            more = "; ..." if len(self.per_column) > 5 else ""
            measured = sum(one.r2 is not None for one in self.per_column)
            mean = "R2 cannot be told" if self.r2 is None else f"R2 {self.r2:.3f} (mean of {measured} columns)"
            return f"{mean} {where}; mean absolute errors: {each}{more}"
        (one,) = self.per_column
        interval = "no interval" if one.mae_interval is None else f"95 % interval {_format_interval(one.mae_interval)}"
        against = "" if one.constant_mae is None else f", always saying {one.constant:.4g} gives {one.constant_mae:.4g}"
        r2 = "" if one.r2 is None else f"; R2 {one.r2:.3f}"
        return f"Mean absolute error of {one.name} {where}: {_format_number(one.mae)} ({interval}{against}){r2}"

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """Lines with metrics, intervals and differences of each column, for the terminal."""
        width = max(6, *(len(one.name) for one in self.per_column))
        names = ("MAE", "RMSE", "R2", "Spearman")
        lines = [f"{'column':<{width}}  {'known':>6}" + "".join(f"  {name:>22}" for name in names)]
        for one in self.per_column:
            values = (one.mae, one.rmse, one.r2, one.spearman)
            spans = (one.mae_interval, one.rmse_interval, one.r2_interval, one.spearman_interval)
            lines.append(
                f"{one.name:<{width}}  {one.n:>6}" + "".join(f"  {_format_number(value):>22}" for value in values)
            )
            lines.append(f"{'':<{width}}  {'':>6}" + "".join(f"  {_format_interval(span):>22}" for span in spans))
            if one.bias is not None and one.agreement is not None:
                low, high = one.agreement
                between = f"{_format_number(one.bias)} in the mean, of 95 % of pictures {low:.4g} to {high:.4g}"
                if one.agreement_intervals is not None:
                    outer = (one.agreement_intervals[0][0], one.agreement_intervals[1][1])
                    between += f" (at most {_format_interval(outer)})"
                lines.append(f"{'':<{width}}  {'':>6}  answer less truth: {between}")
            if one.constant is not None:
                always = f"always {one.constant:.4g}"
                plain = (one.constant_mae, one.constant_rmse)
                lines.append(
                    f"{'':<{width}}  {'':>6}" + "".join(f"  {_format_number(f):>22}" for f in plain) + f"  ({always})"
                )
        units = self.n if self.groups is None else self.groups
        if units < MIN_SQUARED:
            what = "no interval" if units < MIN_UNITS else "no interval of RMSE, R2 and the limits"
            kind = "pictures" if self.groups is None else "groups"
            lines.append(f"({what} is known from {units} {kind}: they do not show how large errors can be)")
        return "\n".join(lines)


def compute_regression_metrics(
    predictions: RegressionPredictions,
    means: tuple[float, ...] | None = None,
    groups: np.ndarray | None = None,
    seed: int = 0,
    samples: int = 1000,
) -> RegressionMetrics:
    """Compute every metric of one table.

    Args:
        means: of the training targets, one per column, as the constant prediction to compare with.
        groups: of each image, such as its patient.
        seed, samples: of the bootstrap.

    Raises:
        DataError: no number of any image is known, or a prediction is not finite.

    Source: definitions as in scikit-learn and scipy; limits of agreement of Bland and Altman 1986, Lancet 327.
    """
    known = predictions.known_mask
    if predictions.targets is None or not known.any():
        raise no_targets_error(len(predictions), "number")
    require_finite(predictions.values[known])
    pairs = np.stack([predictions.targets, predictions.values], 1).astype(np.float64)  # [n, 2, K]
    per_column = []
    for k, name in enumerate(predictions.columns):
        there = known[:, k]
        own = None if groups is None else groups[there]
        per_column.append(
            _compute_column_metrics(name, pairs[there, :, k], None if means is None else means[k], own, seed, samples)
        )
    ranked = [one.r2 for one in per_column if one.r2 is not None]
    return RegressionMetrics(
        split=predictions.split,
        n=int(known.any(1).sum()),
        groups=None if groups is None else len(np.unique(groups[known.any(1)])),
        per_column=tuple(per_column),
        r2=sum(ranked) / len(ranked) if ranked else None,
    )


def r_squared(pairs: np.ndarray) -> float:
    """R2 of pairs (target, prediction) [n, 2]; NaN where all targets are equal."""
    if pairs[:, 0].min() == pairs[:, 0].max():
        return float("nan")
    spread = np.square(pairs[:, 0] - pairs[:, 0].mean()).sum()
    return float(1 - np.square(pairs[:, 1] - pairs[:, 0]).sum() / spread)


def _compute_column_metrics(
    name: str, pairs: np.ndarray, mean: float | None, groups: np.ndarray | None, seed: int, samples: int
) -> PerColumnMetrics:
    """Metrics of one column from its known pairs (target, prediction) [n, 2]."""
    if not len(pairs):
        return PerColumnMetrics(name=name, n=0, constant=mean)
    constant = None if mean is None else np.stack([pairs[:, 0], np.full(len(pairs), mean)], 1)
    gaps, ranking = pairs[:, 1] - pairs[:, 0], _RankCorrelation(pairs)
    mae, rmse, unexplained, bias, deviation = _error_intervals(pairs, groups, seed, samples)
    r2 = None if unexplained is None else Interval(1 - unexplained.high, 1 - unexplained.low)
    values = (_mean_absolute_error(pairs), _root_mean_squared_error(pairs), r_squared(pairs), ranking.value,
              float(gaps.mean()))  # fmt: skip
    fields: dict[str, Any] = {}
    for metric, value, span in zip(
        REGRESSION_METRICS, values, (mae, rmse, r2, ranking.interval(groups), bias), strict=True
    ):
        fields |= metric_fields(metric, value, span)
    if len(pairs) > 1:
        middle, spread = float(gaps.mean()), float(gaps.std(ddof=1))
        fields["agreement"] = middle - AGREEMENT_Z * spread, middle + AGREEMENT_Z * spread
        if bias is not None and deviation is not None:
            fields["agreement_intervals"] = _agreement_intervals(gaps, bias, deviation)
    return PerColumnMetrics(
        name=name,
        n=len(pairs),
        **fields,
        constant=mean,
        constant_mae=None if constant is None else _mean_absolute_error(constant),
        constant_rmse=None if constant is None else _root_mean_squared_error(constant),
    )


def _error_intervals(
    pairs: np.ndarray, groups: np.ndarray | None, seed: int, samples: int
) -> tuple[Interval | None, ...]:
    """Intervals of MAE, RMSE, 1 - R2, bias, and of the standard deviation of the errors."""
    targets, gaps = pairs[:, 0] - pairs[:, 0].mean(), pairs[:, 1] - pairs[:, 0]
    values = np.stack([np.abs(gaps), gaps, gaps**2, targets, targets**2], axis=1)

    def functions(means: np.ndarray) -> np.ndarray:
        size, gap, square, target, target_square = np.moveaxis(means, -1, 0)
        unexplained = np.log(square) - np.log(target_square - target**2)
        spread = np.log(square - gap**2) / 2
        return np.stack([np.log(size), np.log(square) / 2, unexplained, gap, spread], axis=-1)

    is_log, takes_squares = (True, True, True, False, True), (False, True, True, False, True)
    widening = [SQUARED_WIDENING if one else 1.0 for one in takes_squares]
    intervals = bootstrap_t_intervals(values, functions, seed, samples, groups=groups, widening=widening)
    units = len(pairs) if groups is None else len(np.unique(groups))
    return tuple(
        None if span is None or (squares and units < MIN_SQUARED) else Interval(*np.exp(span).tolist()) if log else span
        for span, log, squares in zip(intervals, is_log, takes_squares, strict=True)
    )


def _agreement_intervals(gaps: np.ndarray, bias: Interval, deviation: Interval) -> tuple[Interval, Interval]:
    """Intervals of both limits of agreement; MOVER joins those of the bias and of the standard deviation.

    Skewed errors with a large mean have a large deviation too: their correlation widens the interval of the limit on
    that side, and never narrows the other.

    Source: Zou 2013, "Confidence interval estimation for the Bland-Altman limits of agreement with multiple
    observations per individual", Statistical Methods in Medical Research 22; the correlation is Newcombe's.
    """
    middle, spread = float(gaps.mean()), float(gaps.std(ddof=1))
    skew = float(np.corrcoef(gaps, np.square(gaps - middle))[0, 1])
    narrow, wide = AGREEMENT_Z * (spread - deviation.low), AGREEMENT_Z * (deviation.high - spread)
    below, above = middle - bias.low, bias.high - middle

    def around(limit: float, down: tuple[float, float], up: tuple[float, float], correlation: float) -> Interval:
        reach = [float(np.sqrt(a * a + b * b + 2 * max(correlation, 0.0) * a * b)) for a, b in (down, up)]
        return Interval(limit - reach[0], limit + reach[1])

    return (
        around(middle - AGREEMENT_Z * spread, (below, wide), (above, narrow), -skew),
        around(middle + AGREEMENT_Z * spread, (below, narrow), (above, wide), skew),
    )


def _mean_absolute_error(pairs: np.ndarray) -> float:
    return float(np.abs(pairs[:, 1] - pairs[:, 0]).mean())


def _root_mean_squared_error(pairs: np.ndarray) -> float:
    return float(np.sqrt(np.square(pairs[:, 1] - pairs[:, 0]).mean()))


class _RankCorrelation:
    """Spearman's rank correlation of pairs [n, 2]; NaN where targets or predictions are constant."""

    def __init__(self, pairs: np.ndarray):
        from scipy.stats import rankdata

        self.pairs = pairs
        ranks = rankdata(pairs, axis=0)
        self.ranks = ranks - ranks.mean(0)
        lengths = np.sqrt(np.square(self.ranks).sum(0))
        self.scaled = self.ranks / np.where(lengths > 0, lengths, np.nan)  # columns of length 1
        self.value = float(self.scaled.prod(1).sum())

    def interval(self, groups: np.ndarray | None) -> Interval | None:
        """Fisher's interval, whose standard error is at least that of a normal distribution.

        Source: Bonett and Wright 2000, "Sample size requirements for estimating Pearson, Kendall and Spearman
        correlations", Psychometrika 65, for that error; the other is the delta method, groups with it.
        """
        from scipy.special import stdtrit

        n, value = len(self.pairs), self.value
        numbers = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
        units = int(numbers.max()) + 1
        if units < MIN_UNITS or not np.isfinite(value):
            return None
        sums = np.bincount(numbers, self._influence())
        room = max(1 - value**2, 1 / n)  # of a perfect ranking nothing is known but the number of images
        own = np.sqrt(np.square(sums).sum() * units / (units - 1)) / room
        normal = np.sqrt((1 + value**2 / 2) / (units - 3)) if groups is None else 0.0
        reach = float(stdtrit(units - 1, 0.975)) * (1 + 4 / units) * max(own, normal)
        middle = np.arctanh(np.clip(value, -1 + 1e-12, 1 - 1e-12))
        return Interval(float(np.tanh(middle - reach)), float(np.tanh(middle + reach)))

    def _influence(self) -> np.ndarray:
        """What each pair changes, itself and by moving the ranks of others; their sum is 0."""
        x, y = self.scaled.T
        own = x * y - self.value * (x * x + y * y) / 2
        step = 1 / np.sqrt(np.square(self.ranks).sum(0))  # of one rank
        moved = [
            step[side] * _sums_above(self.pairs[:, side], weights)
            for side, weights in ((0, y - self.value * x), (1, x - self.value * y))
        ]
        whole = own + moved[0] + moved[1]
        return np.asarray(whole - whole.mean())


def _sums_above(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Of each value the summed weights of larger ones, and half of those of equal ones."""
    _, places = np.unique(values, return_inverse=True)
    totals = np.bincount(places, weights)
    return np.asarray((totals.sum() - np.cumsum(totals) + totals / 2)[places])


def _format_number(number: float | None) -> str:
    return "-" if number is None else f"{number:.4g}"


def _format_interval(interval: Span | None) -> str:
    return "" if interval is None else f"{interval[0]:.4g} to {interval[1]:.4g}"
