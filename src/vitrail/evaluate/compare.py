"""Paired comparison of two models on the same images: metric differences, intervals and Holm-adjusted p-values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import config
from ..errors import DataError
from ..formatting import format_these
from ..stats import auc
from ..stats.auc import RocAuc
from ..stats.intervals import bootstrap_interval
from ..stats.paired import holm_correction, sign_flip_test
from .multilabel_metrics import MIN_PER_SIDE, MIN_PROBABILITY, label_losses
from .predictions import (
    LABEL_THRESHOLD,
    UNKNOWN_CLASS,
    ClassificationPredictions,
    MultilabelPredictions,
    RegressionPredictions,
    TaskPredictions,
    output_names,
    reorder_outputs,
)

SIGNIFICANCE_LEVEL = 0.05


@dataclass(frozen=True, kw_only=True)
class MetricDifference:
    """One metric of both models on the same images."""

    name: str
    higher_is_better: bool
    first: float
    second: float
    difference: float
    """First minus second."""
    interval: tuple[float, float]
    """95 %."""
    p_value: float
    """Two-sided, not adjusted."""
    adjusted: float
    """Holm-adjusted for all metrics of the comparison."""

    @property
    def is_significant(self) -> bool:
        """Whether the adjusted p-value is below 0.05."""
        return self.adjusted < SIGNIFICANCE_LEVEL


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The differences in every metric that both models have."""

    split: str
    n: int
    """Images."""
    groups: int | None = None
    """Number of groups, such as patients, if there are groups."""
    differences: tuple[MetricDifference, ...]
    notes: tuple[str, ...] = ()
    """Remarks about the images, such as those that were left out."""

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        return config.write(self)

    def verdict(self, first: str, second: str) -> str:
        """The conclusion, in a sentence or two."""
        significant = [one for one in self.differences if one.is_significant]
        if not significant:
            return f"No evidence of a difference between {first} and {second} on {format_these(self.n, 'picture')}."
        better = [one.name for one in significant if (one.difference > 0) == one.higher_is_better]
        worse = [one.name for one in significant if one.name not in better]
        winners = ((first, better), (second, worse))
        parts = [f"{model} is better in {', '.join(names)}" for model, names in winners if names]
        rest = len(self.differences) - len(significant)
        return "; ".join(parts) + (f"; no evidence of a difference in the other {rest}." if rest else ".")

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """One line per metric, for the terminal."""
        width = max(6, *(len(one.name) for one in self.differences))
        heads = f"{'first':>8}  {'second':>8}  {'difference':>10}  {'95 % interval':>20}  {'p':>6}  {'p, Holm':>7}"
        lines = [f"{'figure':<{width}}  {heads}"]
        for one in self.differences:
            span = f"{one.interval[0]:+.4f} to {one.interval[1]:+.4f}"
            lines.append(
                f"{one.name:<{width}}  {one.first:>8.4f}  {one.second:>8.4f}  {one.difference:>+10.4f}  {span:>20}  "
                f"{_format_p_value(one.p_value):>6}  "
                f"{_format_p_value(one.adjusted):>7}{'  *' if one.is_significant else ''}"
            )
        return "\n".join(lines)


def compare_predictions(
    first: TaskPredictions,
    second: TaskPredictions,
    groups: np.ndarray | None = None,
    seed: int = 0,
    samples: int = 1000,
) -> Comparison:
    """Compare two tables of predictions for the same images.

    Means over images (accuracy, losses, errors) have a paired sign-flip test, per image or per group, and a paired
    bootstrap interval; areas under the ROC curve have DeLong's test and interval.

    Args:
        groups: of each image, such as its patient.
        seed, samples: of the bootstrap.

    Raises:
        DataError: the tables differ in task, names, images or targets, or no target is known.
    """
    second = _align_outputs(first, second)
    differences = list(_all_differences(first, second, groups, seed, samples))
    if not differences:
        raise DataError("A comparison needs pictures whose answers are known. Got none.")
    adjusted = holm_correction([one.p_value for one in differences])
    return Comparison(
        split=first.split,
        n=len(first),
        groups=None if groups is None else len(np.unique(groups)),
        differences=tuple(replace(one, adjusted=p) for one, p in zip(differences, adjusted, strict=True)),
    )


def _format_p_value(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _all_differences(
    first: TaskPredictions, second: TaskPredictions, groups: np.ndarray | None, seed: int, samples: int
) -> Iterator[MetricDifference]:
    if isinstance(first, MultilabelPredictions) and isinstance(second, MultilabelPredictions):
        yield from _auc_differences(first, second, groups)
    for name, higher_is_better, values, known in _per_image_metrics(first, second):
        if not known.any():
            continue
        one, other = (np.asarray(each, np.float64)[known] for each in values)
        own, gaps = None if groups is None else groups[known], one - other
        yield MetricDifference(
            name=name,
            higher_is_better=higher_is_better,
            first=float(one.mean()),
            second=float(other.mean()),
            difference=float(gaps.mean()),
            interval=bootstrap_interval(gaps, lambda rows: float(rows.mean()), seed, samples, groups=own),
            p_value=sign_flip_test(gaps, own, seed),
            adjusted=1.0,
        )


def _per_image_metrics(
    first: TaskPredictions, second: TaskPredictions
) -> Iterator[tuple[str, bool, list[np.ndarray], np.ndarray]]:
    """Metrics that are means over images: name, whether higher is better, values [n] of both models, images that count.

    The last is bool [n].
    """
    if (
        isinstance(first, ClassificationPredictions)
        and isinstance(second, ClassificationPredictions)
        and first.targets is not None
    ):
        known, targets = first.targets != UNKNOWN_CLASS, np.maximum(first.targets, 0)
        yield "accuracy", True, [one.indices == targets for one in (first, second)], known
        chances = [one.probabilities[np.arange(len(first)), targets] for one in (first, second)]
        yield "log loss", False, [-np.log(np.maximum(one, MIN_PROBABILITY)) for one in chances], known
    if isinstance(first, MultilabelPredictions) and isinstance(second, MultilabelPredictions):
        losses = [label_losses(one).sum(1) / np.maximum(one.known_mask.sum(1), 1) for one in (first, second)]
        yield "log loss", False, losses, np.asarray(first.known_mask.any(1))
    if (
        isinstance(first, RegressionPredictions)
        and isinstance(second, RegressionPredictions)
        and first.targets is not None
    ):
        for k, name in enumerate(first.columns):
            errors = [np.abs(one.values[:, k].astype(np.float64) - first.targets[:, k]) for one in (first, second)]
            yield f"mean absolute error of {name}", False, errors, first.known_mask[:, k]


def _auc_differences(
    first: MultilabelPredictions, second: MultilabelPredictions, groups: np.ndarray | None
) -> Iterator[MetricDifference]:
    """AUROC of every label with enough known images (or groups), and their mean where there are several."""
    pairs: list[tuple[str, RocAuc, RocAuc]] = []
    for k, name in enumerate(first.classes):
        known = first.known_mask[:, k]
        positive = known & (first.targets[:, k] >= LABEL_THRESHOLD) if first.targets is not None else known
        if not (positive.any() and (known & ~positive).any()):
            continue
        one, other = (
            auc.roc_auc_with_influence(positive, table.probabilities[:, k], known, groups) for table in (first, second)
        )
        if min(one.positives, one.negatives) >= MIN_PER_SIDE:  # images, or groups
            pairs.append((f"AUROC of {name}", one, other))
    if len(pairs) > 1:
        means = auc.mean_roc_auc([one for _, one, _ in pairs]), auc.mean_roc_auc([other for _, _, other in pairs])
        pairs.insert(0, ("mean AUROC", means[0], means[1]))
    for name, one, other in pairs:
        gap, interval, p = auc.roc_auc_difference(one, other)
        yield MetricDifference(
            name=name, higher_is_better=True, first=one.value, second=other.value, difference=gap, interval=interval,
            p_value=p, adjusted=1.0,
        )  # fmt: skip


def _align_outputs(first: TaskPredictions, second: TaskPredictions) -> TaskPredictions:
    """Reorder the outputs of the second table as in the first.

    Raises:
        DataError: what differs.
    """
    if type(first) is not type(second):
        raise DataError("Two models can be compared that answer the same task. These answer different ones.")
    names, others = output_names(first), output_names(second)
    if set(names) != set(others):
        apart = ", ".join(map(repr, sorted(set(names) ^ set(others))[:5]))
        raise DataError(f"Two models can be compared that answer with the same names. These differ in {apart}.")
    second = reorder_outputs(second, names)
    if first.ids != second.ids or not np.array_equal(_float_targets(first), _float_targets(second), equal_nan=True):
        raise DataError("Two models can be compared on the same pictures with the same targets. These differ.")
    return second


def _float_targets(predictions: TaskPredictions) -> np.ndarray:
    return np.zeros(0) if predictions.targets is None else predictions.targets.astype(np.float64)
