"""Metrics of any task, and `results.csv`: one line per metric and split, for spreadsheets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..data.csv_injection import escape_cell, format_csv_lines
from ..files import atomic
from . import metrics, multilabel_metrics, regression_metrics
from .anomaly_metrics import AnomalyMetrics, compute_anomaly_metrics
from .calibration import TargetScaling
from .conformal import Promise
from .metrics import ClassificationMetrics
from .multilabel_metrics import MultilabelMetrics
from .predictions import UNKNOWN_CLASS, ClassificationPredictions, MultilabelPredictions, TaskPredictions
from .regression_metrics import RegressionMetrics
from .segmentation_metrics import SegmentationMetrics, compute_segmentation_metrics

TaskMetrics = ClassificationMetrics | MultilabelMetrics | RegressionMetrics | AnomalyMetrics | SegmentationMetrics


def compute_metrics(
    predictions: TaskPredictions,
    scaling: TargetScaling | None = None,
    groups: np.ndarray | None = None,
    ordered: bool = False,
    promise: Promise | None = None,
) -> TaskMetrics:
    """Compute every metric of one table.

    Args:
        scaling: target scaling of regression; its mean is the constant prediction to compare with.
        groups: group of each image, such as its patient; images of one group may be correlated.
        ordered: whether the classes are ordinal, such as grades.
        promise: of anomaly, the rate of false alarms.

    Raises:
        DataError: no image has a known target, or a prediction is not finite.
    """
    if isinstance(predictions, ClassificationPredictions) and predictions.scores is not None:
        return compute_anomaly_metrics(predictions, groups, promise)
    if isinstance(predictions, ClassificationPredictions):
        return metrics.compute_classification_metrics(predictions, groups, ordered)
    if isinstance(predictions, MultilabelPredictions):
        return multilabel_metrics.compute_multilabel_metrics(predictions, groups)
    if predictions.overlaps is not None:
        return compute_segmentation_metrics(predictions, groups)
    return regression_metrics.compute_regression_metrics(predictions, None if scaling is None else scaling.mean, groups)


def has_known_targets(predictions: TaskPredictions) -> bool:
    """Whether the target of any image is known, so that metrics can be computed."""
    if predictions.targets is None:
        return False
    if isinstance(predictions, ClassificationPredictions):
        return bool((predictions.targets != UNKNOWN_CLASS).any())
    return bool(predictions.known_mask.any())


# -- results.csv

RESULTS_FILE = "results.csv"
RESULTS_HEADER = ["split", "of", "figure", "value", "low", "high", "n"]
RESULTS_PARTS = ("per_class", "per_label", "per_column", "per_type")
_INTERVAL = "_interval"


class MetricRow(NamedTuple):
    """One metric. `low` and `high` are its interval, or the ends of a range, which has no value."""

    split: str
    scope: str
    """The class, label or column; empty for the whole split."""
    metric: str
    value: float | None
    low: float | None
    high: float | None
    n: int
    """Images with a known target, or of the class."""


def iter_results(metrics: TaskMetrics) -> Iterator[MetricRow]:
    """Metrics of a split in the order of its JSON, then those of each class, label or column."""
    values = metrics.to_json()
    yield from _iter_rows(values, metrics.split, "")
    for part in RESULTS_PARTS:
        for one in values.get(part, ()):
            yield from _iter_rows(one, metrics.split, one["name"])


COPIES_ROW = "copies_of_training"
"""Name of the row with the number of evaluated images that the model was trained on; absent where none is known."""


def write_results_csv(path: Path, metrics: Sequence[TaskMetrics], copies: Mapping[str, int] | None = None) -> None:
    """Write results.csv atomically.

    Args:
        copies: for a split, how many of its images are copies of training images.

    Raises:
        ResourceError: the disk is full or read-only, or permission is missing.
    """
    rows, counted = [], [row for each in metrics for row in iter_results(each)]
    for each in metrics:
        if count := (copies or {}).get(each.split):
            counted.append(MetricRow(each.split, "", COPIES_ROW, count, None, None, each.n))
    for row in counted:
        numbers = ["" if number is None else repr(float(number)) for number in (row.value, row.low, row.high)]
        rows.append([escape_cell(row.split), escape_cell(row.scope), row.metric, *numbers, str(row.n)])
    atomic.write_bytes(path, "".join(format_csv_lines([RESULTS_HEADER, *rows])).encode("utf-8", "surrogateescape"))


def _iter_rows(values: Mapping[str, Any], split: str, scope: str) -> Iterator[MetricRow]:
    for name, value in values.items():
        is_range = isinstance(value, list) and len(value) == 2 and all(isinstance(end, float) for end in value)
        if isinstance(value, float):
            low, high = values.get(name + _INTERVAL, (None, None))
            yield MetricRow(split, scope, name, value, low, high, values["n"])
        elif is_range and not name.endswith(_INTERVAL):
            yield MetricRow(split, scope, name, None, value[0], value[1], values["n"])
