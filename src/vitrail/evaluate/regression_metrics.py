"""Regression metrics of stored predictions, with 95 % intervals: MAE, RMSE, R2, Spearman, bias, limits of agreement.

Unknown targets are left out of every metric. Every metric can be recomputed from `predictions/test.csv` and the mean of
the training targets, which is the constant prediction to compare with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import config
from ..stats.intervals import bootstrap_intervals
from .metrics import describe_images, metric_fields, no_targets_error, require_finite
from .predictions import RegressionPredictions

Span = tuple[float, float]
REGRESSION_METRICS = ("mae", "rmse", "r2", "spearman", "bias")
AGREEMENT_Z = 1.96
"""Standard deviations around the mean that hold 95 % of a normal distribution."""


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
    constant: float | None = None
    """The mean of the training targets, if known."""
    constant_mae: float | None = None
    """Mean absolute error of predicting that constant."""
    constant_rmse: float | None = None


@dataclass(frozen=True, kw_only=True)
class RegressionMetrics:
    """All metrics of one split; intervals are 95 %, percentile bootstrap over images or whole groups."""

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
        assert one.mae is not None and one.mae_interval is not None  # a single column has a known target
        against = "" if one.constant_mae is None else f", always saying {one.constant:.4g} gives {one.constant_mae:.4g}"
        low, high = one.mae_interval
        r2 = "" if one.r2 is None else f"; R2 {one.r2:.3f}"
        return (
            f"Mean absolute error of {one.name} {where}: {one.mae:.4g} (95 % interval {low:.4g} to {high:.4g}{against})"
            f"{r2}"
        )

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
                lines.append(f"{'':<{width}}  {'':>6}  answer less truth: {between}")
            if one.constant is not None:
                always = f"always {one.constant:.4g}"
                plain = (one.constant_mae, one.constant_rmse)
                lines.append(
                    f"{'':<{width}}  {'':>6}" + "".join(f"  {_format_number(f):>22}" for f in plain) + f"  ({always})"
                )
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
    spans = bootstrap_intervals(pairs, _compute_statistics, seed, samples, groups=groups)
    fields: dict[str, Any] = {}
    for metric, value, span in zip(REGRESSION_METRICS, _compute_statistics(pairs), spans, strict=True):
        fields |= metric_fields(metric, value, span)
    if len(pairs) > 1:
        gaps = pairs[:, 1] - pairs[:, 0]
        middle, reach = float(gaps.mean()), AGREEMENT_Z * float(gaps.std(ddof=1))
        fields["agreement"] = middle - reach, middle + reach
    return PerColumnMetrics(
        name=name,
        n=len(pairs),
        **fields,
        constant=mean,
        constant_mae=None if constant is None else _mean_absolute_error(constant),
        constant_rmse=None if constant is None else _root_mean_squared_error(constant),
    )


def _compute_statistics(pairs: np.ndarray) -> np.ndarray:
    """REGRESSION_METRICS of the pairs; NaN for undefined ones."""
    bias = float((pairs[:, 1] - pairs[:, 0]).mean())
    return np.array(
        [_mean_absolute_error(pairs), _root_mean_squared_error(pairs), r_squared(pairs), _spearman(pairs), bias]
    )


def _mean_absolute_error(pairs: np.ndarray) -> float:
    return float(np.abs(pairs[:, 1] - pairs[:, 0]).mean())


def _root_mean_squared_error(pairs: np.ndarray) -> float:
    return float(np.sqrt(np.square(pairs[:, 1] - pairs[:, 0]).mean()))


def _spearman(pairs: np.ndarray) -> float:
    """Rank correlation; NaN where targets or predictions are constant."""
    from scipy.stats import rankdata

    ranks = rankdata(pairs, axis=0)
    ranks -= ranks.mean(0)
    lengths = np.sqrt(np.square(ranks).sum(0)).prod()
    return float(ranks.prod(1).sum() / lengths) if lengths else float("nan")


def _format_number(number: float | None) -> str:
    return "-" if number is None else f"{number:.4g}"


def _format_interval(interval: Span | None) -> str:
    return "" if interval is None else f"{interval[0]:.4g} to {interval[1]:.4g}"
