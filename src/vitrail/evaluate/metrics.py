"""Classification metrics of stored predictions, with 95 % intervals: accuracy, F1, kappa, AUROC, log loss, calibration.

Every metric can be recomputed from `predictions/test.csv` alone; intervals also use the groups, if there are any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import config
from ..errors import DataError, NonFiniteError
from ..formatting import format_count
from ..stats import auc
from ..stats.auc import RocAuc
from ..stats.intervals import Interval, bootstrap_intervals, wilson_interval
from .calibration import MIN_IMAGES, measure_calibration_error
from .predictions import UNKNOWN_CLASS, ClassificationPredictions

Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class PerClassMetrics:
    """Metrics of one class against all others; None where the split cannot show them."""

    name: str
    n: int
    """Images of this class."""
    predicted: int
    """Images predicted to be of this class."""
    precision: float | None = None
    """Fraction of these predictions that are correct."""
    precision_interval: Span | None = None
    recall: float | None = None
    """Fraction of the images of this class that are predicted so."""
    recall_interval: Span | None = None
    f1: float | None = None
    """Harmonic mean of precision and recall."""
    f1_interval: Span | None = None
    auroc: float | None = None
    """Probability that an image of this class scores above an image of another class."""
    auroc_interval: Span | None = None


@dataclass(frozen=True, kw_only=True)
class ClassificationMetrics:
    """All metrics of one split; intervals are 95 %.

    Proportions have Wilson intervals, areas under the ROC curve DeLong's, all others the percentile bootstrap. With
    groups, proportions have the bootstrap too, it resamples whole groups, and DeLong's variance sums over groups.
    Without any error, balanced accuracy, F1 and kappa have the interval of the accuracy.
    """

    split: str
    n: int
    groups: int | None = None
    """Number of groups, such as patients, if there are groups."""
    accuracy: float
    accuracy_interval: Span
    balanced_accuracy: float
    """Mean recall over the classes that occur."""
    balanced_accuracy_interval: Span
    macro_f1: float
    """Mean F1 over the classes that occur or were predicted."""
    macro_f1_interval: Span
    top: int | None = None
    """k of the top-k accuracy: two, or five with more than ten classes."""
    top_accuracy: float | None = None
    """Fraction of images whose true class is among the k most probable ones."""
    top_accuracy_interval: Span | None = None
    kappa: float | None = None
    """Cohen's kappa: agreement beyond chance; 0 is guessing, 1 is perfect."""
    kappa_interval: Span | None = None
    quadratic_kappa: float | None = None
    """Kappa with quadratic weights, for ordinal classes."""
    quadratic_kappa_interval: Span | None = None
    auroc: float | None = None
    """Mean over classes, one against the rest."""
    auroc_interval: Span | None = None
    log_loss: float
    """Mean of -log(probability of the true class), in nats."""
    log_loss_interval: Span
    brier: float
    """Mean squared error of the probabilities, summed over classes; for two classes half of it."""
    brier_interval: Span
    calibration_error: float | None = None
    """Debiased calibration error of the confidence over 15 equal-count bins; None with fewer than 100 images."""
    plain_calibration_error: float | None = None
    """ECE: the same over 15 equal-width bins, with the bias that chance adds."""
    confusion: tuple[tuple[int, ...], ...]
    """Confusion matrix, images [target][prediction]."""
    per_class: tuple[PerClassMetrics, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers, as in report.json; unmeasured values are absent."""
        return config.write(self)

    def headline(self) -> str:
        """The primary metric in a sentence without its full stop."""
        low, high = self.accuracy_interval
        where = f"on {self.n:,} held-out pictures ({self.split})"
        return f"Accuracy {where}: {self.accuracy:.2%} (95 % interval {low:.2%} to {high:.2%})"

    def describe_doubt(self) -> str:
        """A sentence if the images do not show that the model beats guessing, else empty.

        Kappa and AUROC decide, which guessing does not raise: both intervals include chance level, 0 and 0.5.
        """
        if self.kappa_interval is None or self.kappa_interval[0] > 0:
            return ""
        if self.auroc_interval is not None and self.auroc_interval[0] > 0.5:
            return ""
        return (
            f"These {self.n:,} pictures do not show that it is better than guessing: its agreement beyond chance "
            "(kappa) may be 0."
        )

    def table(self) -> str:
        """The headline and one line per class, for the terminal."""
        n = f"n = {self.n:,}" + ("" if self.groups is None else f" in {self.groups:,} groups")
        shares = {
            "accuracy": (self.accuracy, self.accuracy_interval),
            "balanced accuracy": (self.balanced_accuracy, self.balanced_accuracy_interval),
            "macro F1": (self.macro_f1, self.macro_f1_interval),
            f"in the first {self.top}": (self.top_accuracy, self.top_accuracy_interval),
        }
        numbers = {
            "kappa": (self.kappa, self.kappa_interval),
            "quadratic kappa": (self.quadratic_kappa, self.quadratic_kappa_interval),
            "AUROC": (self.auroc, self.auroc_interval),
            "log loss": (self.log_loss, self.log_loss_interval),
            "Brier score": (self.brier, self.brier_interval),
            "calibration error": (self.calibration_error, None),
        }
        lines = [
            f"{name:<17} {_format_percent(share)}  (95 % interval {100 * span[0]:.2f} to {100 * span[1]:.2f} %)"
            for name, (share, span) in shares.items()
            if span
        ]
        lines[0] = lines[0].removesuffix(")") + f", {n})"
        for name, (number, span) in numbers.items():
            interval = "" if span is None else f"  (95 % interval {span[0]:.4f} to {span[1]:.4f})"
            lines += [] if number is None else [f"{name:<17} {number:6.4f}{interval}"]
        if self.calibration_error is None:
            lines.append(f"{'calibration error':<17} unknown, which takes {MIN_IMAGES} pictures")
        doubt = self.describe_doubt()
        return "\n".join([*lines, *([doubt] if doubt else []), "", *self._per_class_lines()])

    def _per_class_lines(self) -> list[str]:
        width = max(5, *(len(one.name) for one in self.per_class))
        lines = [f"{'class':<{width}}  {'n':>6}  precision  {'recall':>7}  {'F1':>7}   AUROC"]
        for one in self.per_class:
            auroc = "     -" if one.auroc is None else f"{one.auroc:6.4f}"
            shares = (
                f"{_format_percent(one.precision):>9}  {_format_percent(one.recall):>7}  {_format_percent(one.f1):>7}"
            )
            lines.append(f"{one.name:<{width}}  {one.n:>6}  {shares}  {auroc}")
        return lines


def compute_classification_metrics(
    predictions: ClassificationPredictions,
    groups: np.ndarray | None = None,
    ordered: bool = False,
    seed: int = 0,
    samples: int = 1000,
) -> ClassificationMetrics:
    """Compute every metric of one table of predictions; images without a target are left out.

    Args:
        groups: of each image, such as its patient.
        ordered: whether the classes are ordinal, such as grades.
        seed, samples: of the bootstrap.

    Raises:
        DataError: no image has a target, or a prediction is not finite.

    Source: definitions as in scikit-learn.
    """
    known = np.zeros(len(predictions), bool) if predictions.targets is None else predictions.targets != UNKNOWN_CLASS
    if predictions.targets is None or not known.any():
        raise no_targets_error(len(predictions), "class")
    targets, probabilities = predictions.targets[known].astype(np.int64), predictions.probabilities[known].astype(float)
    require_finite(probabilities)
    groups = None if groups is None else groups[known]
    K = len(predictions.classes)
    top = None if K < 3 else 2 if K <= 10 else 5
    table = _per_image_table(targets, predictions.indices[known], probabilities, top)
    confusion = _confusion_matrix(table, K)
    values = _compute_statistics(table, K, ordered)
    spans = bootstrap_intervals(table, lambda rows: _compute_statistics(rows, K, ordered), seed, samples, groups=groups)
    spans = _replace_with_wilson(spans, values, table, K, groups)
    aucs = [
        auc.roc_auc_with_influence(targets == k, probabilities[:, k], groups=groups) if 0 < count < len(table) else None
        for k, count in enumerate(confusion.sum(1))
    ]
    defined = [one for one in aucs if one is not None]
    confidences, hits = probabilities.max(1), targets == probabilities.argmax(1)  # before any threshold
    whole: dict[str, Any] = {}
    for name, value, span in zip(OVERALL_NAMES, values, spans, strict=False):
        whole |= metric_fields(name, value, span)
    return ClassificationMetrics(
        split=predictions.split,
        n=len(targets),
        groups=None if groups is None else len(np.unique(groups)),
        top=top,
        **whole,
        **(auc_fields(auc.mean_roc_auc(defined)) if defined else {}),
        calibration_error=measure_calibration_error(confidences, hits),
        plain_calibration_error=measure_calibration_error(confidences, hits, debiased=False),
        confusion=tuple(tuple(row) for row in confusion.tolist()),
        per_class=_compute_per_class(predictions.classes, confusion, values, spans, aucs),
    )


OVERALL_NAMES = (
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    "kappa",
    "quadratic_kappa",
    "top_accuracy",
    "log_loss",
    "brier",
)
"""The first values of `_compute_statistics`; recall, precision and F1 of every class follow."""


def _per_image_table(
    targets: np.ndarray, predictions: np.ndarray, probabilities: np.ndarray, top: int | None
) -> np.ndarray:
    """Per image: index in the confusion matrix, top-k hit, log loss and Brier score, [n, 4]."""
    K, right = probabilities.shape[1], probabilities[np.arange(len(targets)), targets]
    columns = [
        targets * K + predictions,
        np.full(len(targets), np.nan) if top is None else (probabilities > right[:, None]).sum(1) < top,
        0.0 - np.log(np.maximum(right, np.finfo(np.float32).tiny)),
        np.square(probabilities - np.eye(K)[targets]).sum(1) / (2 if K == 2 else 1),
    ]
    return np.stack(columns, axis=1)


def _compute_statistics(table: np.ndarray, K: int, ordered: bool) -> np.ndarray:
    """The metrics that are bootstrapped, [8 + 3 K]; NaN for one that these rows do not define."""
    confusion = _confusion_matrix(table, K)
    right, actual, predicted = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        recall, precision, f1 = right / actual, right / predicted, 2 * right / (actual + predicted)
    means = table[:, 1:].mean(0)
    whole = [
        right.sum() / len(table), np.nanmean(recall), np.nanmean(f1), _weighted_kappa(confusion, 0),
        _weighted_kappa(confusion, 2) if ordered else np.nan, *means,
    ]  # fmt: skip
    return np.concatenate([whole, recall, precision, f1])


def _confusion_matrix(table: np.ndarray, K: int) -> np.ndarray:
    return np.bincount(table[:, 0].astype(np.int64), minlength=K * K).reshape(K, K)


def _weighted_kappa(confusion: np.ndarray, power: int) -> float:
    """Cohen's kappa with weights |i - j| ** power (unweighted for 0); NaN where it is undefined."""
    n, actual, predicted = confusion.sum(), confusion.sum(1), confusion.sum(0)
    if not power:
        by_chance = float((actual * predicted).sum()) / n
        return 1 - float(n - confusion.diagonal().sum()) / (n - by_chance) if n > by_chance else float("nan")
    indices = np.arange(len(confusion))
    weights = np.abs(indices[:, None] - indices).astype(np.float64) ** power
    expected = float((weights * np.outer(actual, predicted)).sum()) / n
    return 1 - float((weights * confusion).sum()) / expected if expected else float("nan")


def _replace_with_wilson(
    spans: list[Interval | None], values: np.ndarray, table: np.ndarray, K: int, groups: np.ndarray | None
) -> list[Interval | None]:
    """Replace the bootstrap intervals of proportions by Wilson's, see `proportion_interval`."""
    confusion = _confusion_matrix(table, K)
    rows = {"accuracy": table[:, 0] // K == table[:, 0] % K, "top_accuracy": table[:, 1] == 1}
    shares = {
        OVERALL_NAMES.index(name): (right, groups)
        for name, right in rows.items()
        if not np.isnan(values[OVERALL_NAMES.index(name)])
    }
    for k in range(K):
        of_class, predicted = table[:, 0] // K == k, table[:, 0] % K == k
        shares[len(OVERALL_NAMES) + k] = predicted[of_class], None if groups is None else groups[of_class]
        shares[len(OVERALL_NAMES) + K + k] = of_class[predicted], None if groups is None else groups[predicted]
    intervals = list(spans)
    for index, (right, own) in shares.items():
        intervals[index] = proportion_interval(right, own, spans[index])
    if confusion.trace() == len(table):  # without an error every bootstrap sample has the same value
        low = intervals[0].low if intervals[0] is not None else 0.0
        for name in ("balanced_accuracy", "macro_f1", "kappa", "quadratic_kappa"):
            intervals[OVERALL_NAMES.index(name)] = Interval(low, 1.0)
    return intervals


def _compute_per_class(
    names: tuple[str, ...],
    confusion: np.ndarray,
    values: np.ndarray,
    spans: list[Interval | None],
    aucs: list[RocAuc | None],
) -> tuple[PerClassMetrics, ...]:
    per_class = []
    for k, (name, one) in enumerate(zip(names, aucs, strict=True)):
        fields: dict[str, Any] = {} if one is None else auc_fields(one)
        for number, kind in enumerate(("recall", "precision", "f1")):
            place = len(OVERALL_NAMES) + number * len(names) + k
            fields |= metric_fields(kind, values[place], spans[place])
        per_class.append(
            PerClassMetrics(name=name, n=int(confusion[k].sum()), predicted=int(confusion[:, k].sum()), **fields)
        )
    return tuple(per_class)


def _format_percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


# -- Shared by the metrics of all tasks


def metric_fields(name: str, value: float, span: Interval | None) -> dict[str, Any]:
    """The fields `name` and `name_interval` of a metrics class; empty where the value is not finite."""
    return {name: float(value), f"{name}_interval": span} if np.isfinite(value) else {}


def proportion_interval(right: np.ndarray, groups: np.ndarray | None, samples: Interval | None) -> Interval | None:
    """Interval of a proportion: Wilson's, or with groups the bootstrap interval `samples`.

    All bootstrap samples of a proportion of 0 or 1 are equal, so there Wilson's interval counts a group as one image.
    """
    if not len(right):
        return None
    if groups is None:
        return wilson_interval(int(right.sum()), len(right))
    if 0 < right.sum() < len(right):
        return samples
    n = len(np.unique(groups))
    return wilson_interval(n if right.all() else 0, n)


def auc_fields(auc: RocAuc) -> dict[str, Any]:
    """`metric_fields` of an area under the ROC curve."""
    return metric_fields("auroc", auc.value, auc.interval())


def require_finite(predictions: np.ndarray) -> None:
    """Refuse predictions that are NaN or infinite.

    Raises:
        NonFiniteError: some are; the message counts them.
    """
    if bad := int(np.count_nonzero(~np.isfinite(predictions))):
        raise NonFiniteError(
            f"{bad:,} of {predictions.size:,} answers are NaN or infinite, so they cannot be measured. The model is "
            "damaged or has diverged; train it again with lower rates."
        )


def no_targets_error(n: int, what: str) -> DataError:
    """The error for metrics of images without targets."""
    return DataError(
        f"Metrics need at least one picture with a known {what}. Got {format_count(n, 'picture')}, none with a target; "
        "`vitrail predict` answers pictures without one."
    )
