"""The primary metric of a task on a subset of images: accuracy, mean AUROC, or mean absolute error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from ..errors import DataError
from ..formatting import format_count
from ..stats import auc
from ..stats.intervals import Interval, bootstrap_interval, proportion_interval
from .metrics import limit_low, require_finite
from .multilabel_metrics import MIN_PER_SIDE
from .predictions import (
    LABEL_THRESHOLD,
    UNKNOWN_CLASS,
    ClassificationPredictions,
    MultilabelPredictions,
    RegressionPredictions,
    TaskPredictions,
)

ACCURACY = "accuracy"


@dataclass(frozen=True, kw_only=True)
class PrimaryMetric:
    """A metric with its 95 % interval; both are None where nothing can be measured."""

    name: str
    n: int
    """Number of images."""
    groups: int
    """Number of groups; without groups the number of images."""
    value: float | None = None
    interval: Interval | None = None
    labels: tuple[int, ...] = ()
    """For multilabel the indices of the labels in the mean."""


def compute_primary_metric(
    predictions: TaskPredictions,
    rows: Bool[np.ndarray, " n"] | None = None,
    groups: Shaped[np.ndarray, " n"] | None = None,
    labels: Sequence[int] | None = None,
    seed: int = 0,
) -> PrimaryMetric:
    """Accuracy of classes, mean AUROC of labels, or mean absolute error of numbers, on images with a known target.

    Accuracy and AUROC have the intervals of `metrics.ClassificationMetrics`, errors have the bootstrap's.
    Errors of several columns are divided by the standard deviation of each column's targets over all images and then
    averaged; columns with constant targets are left out.

    Args:
        rows: mask of the images that count; None takes all.
        groups: group of each image, such as its patient.
        labels: labels in the mean AUROC; None takes those with ten known positives and ten known negatives.
    """
    return compute_mean_primary_metric([predictions], rows, groups, labels, seed)


def compute_mean_primary_metric(
    tables: Sequence[TaskPredictions],
    rows: Bool[np.ndarray, " n"] | None = None,
    groups: Shaped[np.ndarray, " n"] | None = None,
    labels: Sequence[int] | None = None,
    seed: int = 0,
) -> PrimaryMetric:
    """Mean of the primary metrics of several tables of the same images, such as corrupted versions.

    The interval accounts for their correlation: an image, or group, is resampled with its predictions in all tables.

    Args:
        tables: of one task, with the same images in the same order.
        rows, groups, labels: as in `compute_primary_metric`.
    """
    first = tables[0]
    if isinstance(first, MultilabelPredictions):
        return _multilabel_primary_metric(tables, first, rows, groups, labels)
    name, values = per_image_metric(first)
    values = np.mean([per_image_metric(one)[1] for one in tables], axis=0)
    there = ~np.isnan(values) if rows is None else rows & ~np.isnan(values)
    own = None if groups is None else groups[there]
    n, count = int(there.sum()), int(there.sum()) if own is None else len(np.unique(own))
    if not n:
        return PrimaryMetric(name=name, n=0, groups=0)
    wide = values[there]
    value = float(wide.mean())
    if len(tables) == 1 and isinstance(first, ClassificationPredictions):
        interval: Interval | None = proportion_interval(wide == 1, own)
        return PrimaryMetric(name=name, n=n, groups=count, value=value, interval=interval)
    interval = bootstrap_interval(wide, lambda drawn: float(drawn.mean()), seed, groups=own) if count > 1 else None
    if isinstance(first, ClassificationPredictions):  # several tables without an error have no spread to draw from
        interval = limit_low(interval, proportion_interval(np.ones(n, bool), own).low)
    return PrimaryMetric(name=name, n=n, groups=count, value=value, interval=interval)


def primary_metric_value(predictions: TaskPredictions) -> float:
    """The value of the primary metric on all images, without an interval.

    Raises:
        DataError: a prediction is not finite, no target is known, every label is rare, or the targets of every column
            are constant.
    """
    if isinstance(predictions, MultilabelPredictions):
        require_finite(predictions.probabilities)
        known = predictions.known_mask
        if not known.any():
            raise _no_targets_error(len(predictions), "label")
        counted = _measurable_labels(known, _positive_mask(predictions))
        if not counted:
            raise DataError(
                f"An AUROC needs a label with {MIN_PER_SIDE} known pictures that have it and {MIN_PER_SIDE} that do "
                f"not. None of the {format_count(len(predictions.classes), 'label')} has them among "
                f"{format_count(len(predictions), 'picture')}; give more."
            )
        return auc.mean_roc_auc(_label_aucs(predictions, known, counted, None)).value
    require_finite(predictions.values if isinstance(predictions, RegressionPredictions) else predictions.probabilities)
    values = per_image_metric(predictions)[1]
    if not np.isnan(values).all():
        return float(np.nanmean(values))
    if isinstance(predictions, RegressionPredictions) and predictions.known_mask.any():
        raise DataError(
            "Errors of several columns are compared by the deviation of their targets. All targets of each of the "
            f"{int(predictions.known_mask.any(0).sum())} known columns are equal among "
            f"{format_count(len(predictions), 'picture')}; give more."
        )
    raise _no_targets_error(len(predictions), "number" if isinstance(predictions, RegressionPredictions) else "class")


def _no_targets_error(n: int, what: str) -> DataError:
    return DataError(f"A figure needs pictures with a known {what}. Got {format_count(n, 'picture')}, none with one.")


def per_image_metric(predictions: TaskPredictions) -> tuple[str, Float64[np.ndarray, " n"]]:
    """Name of the metric, and its value for each image; NaN where the target is unknown.

    Values are 1 or 0 for a correct or wrong class, and absolute errors for regression.
    """
    if isinstance(predictions, RegressionPredictions):
        return _scaled_absolute_errors(predictions, predictions.values.astype(np.float64))
    assert not isinstance(predictions, MultilabelPredictions)
    if predictions.targets is None:
        return ACCURACY, np.full(len(predictions), np.nan)
    right = (predictions.indices == predictions.targets).astype(np.float64)
    return ACCURACY, np.where(predictions.targets == UNKNOWN_CLASS, np.nan, right)


def constant_baseline_errors(predictions: RegressionPredictions) -> Float64[np.ndarray, " n"]:
    """As `per_image_metric`, for the constant prediction of the mean target."""
    targets = _float_targets(predictions)
    means = [column[~np.isnan(column)].mean() if not np.isnan(column).all() else np.nan for column in targets.T]
    return _scaled_absolute_errors(predictions, np.broadcast_to(np.array(means), targets.shape))[1]


def _scaled_absolute_errors(predictions: RegressionPredictions, values: np.ndarray) -> tuple[str, np.ndarray]:
    targets = _float_targets(predictions)
    errors = np.abs(values - targets)
    if errors.shape[1] == 1:
        return f"mean absolute error of {predictions.columns[0]}", errors[:, 0]
    spreads = np.array([column[~np.isnan(column)].std() if not np.isnan(column).all() else 0.0 for column in targets.T])
    counted = ~np.isnan(errors) & (spreads > 0)
    scaled = np.where(counted, errors / np.where(spreads > 0, spreads, 1.0), 0.0).sum(1)
    means = np.where(counted.any(1), scaled / np.maximum(counted.sum(1), 1), np.nan)
    return "mean absolute error in deviations", means


def _float_targets(predictions: RegressionPredictions) -> np.ndarray:
    return (
        np.full(predictions.values.shape, np.nan)
        if predictions.targets is None
        else predictions.targets.astype(np.float64)
    )


def _multilabel_primary_metric(
    tables: Sequence[TaskPredictions],
    first: MultilabelPredictions,
    rows: np.ndarray | None,
    groups: np.ndarray | None,
    labels: Sequence[int] | None,
) -> PrimaryMetric:
    known = first.known_mask if rows is None else first.known_mask & rows[:, None]
    counted = _measurable_labels(known, _positive_mask(first)) if labels is None else tuple(labels)
    measured = known.any(1)
    n = int(measured.sum())
    count = n if groups is None else len(np.unique(groups[measured]))
    name = "AUROC" if known.shape[1] == 1 else "mean AUROC"
    multilabel = [one for one in tables if isinstance(one, MultilabelPredictions)]
    aucs = [one for table in multilabel for one in _label_aucs(table, known, counted, groups)]
    if not aucs:
        return PrimaryMetric(name=name, n=n, groups=count)
    mean = auc.mean_roc_auc(aucs)
    return PrimaryMetric(name=name, n=n, groups=count, value=mean.value, interval=mean.interval(), labels=counted)


def _positive_mask(predictions: MultilabelPredictions) -> np.ndarray:
    return (
        np.zeros(predictions.probabilities.shape, bool)
        if predictions.targets is None
        else predictions.targets >= LABEL_THRESHOLD
    )


def _measurable_labels(known: np.ndarray, present: np.ndarray) -> tuple[int, ...]:
    """Labels with at least MIN_PER_SIDE known positives and negatives."""
    fewest = np.minimum((known & present).sum(0), (known & ~present).sum(0))
    return tuple(np.flatnonzero(fewest >= MIN_PER_SIDE).tolist())


def _label_aucs(
    predictions: MultilabelPredictions, known: np.ndarray, labels: Sequence[int], groups: np.ndarray | None
) -> list[auc.RocAuc]:
    present = known & _positive_mask(predictions)
    return [
        auc.roc_auc_with_influence(present[:, k], predictions.probabilities[:, k], known[:, k], groups) for k in labels
    ]
