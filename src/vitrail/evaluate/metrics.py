"""Classification metrics of stored predictions, with 95 % intervals: accuracy, F1, kappa, AUROC, log loss, calibration.

Every metric can be recomputed from `predictions/test.csv` alone; intervals also use the groups, if there are any.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from .. import config
from ..errors import DataError, NonFiniteError
from ..formatting import format_count, format_these
from ..stats import auc
from ..stats.auc import RocAuc
from ..stats.intervals import (
    Interval,
    bootstrap_counts,
    bounded_mean_intervals,
    effective_count,
    mean_of_rates_interval,
    percentile_intervals,
    proportion_interval,
    wilson_interval_of_share,
)
from .calibration import MIN_IMAGES, CalibrationSummary, expected_calibration_error, summarize_calibration
from .predictions import UNKNOWN_CLASS, ClassificationPredictions
from .thresholds import compute_roc_points

Span = tuple[float, float]
SMALLEST = float(np.finfo(np.float32).tiny)
"""Smallest probability in a log loss."""
CASES_SUFFIX = "-cases"
"""The cases of the split test are the split test-cases in files of predictions and metrics."""


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

    Proportions have Wilson intervals, and so has their mean (`mean_of_rates_interval`); areas under the ROC curve have
    Newcombe's score interval, losses Gaffke's (`bounded_mean_intervals`), and kappa the percentile bootstrap. With
    groups, an image counts as part of its group: Wilson's and Newcombe's take groups for images, and the others draw or
    weigh whole groups. No lower bound is above that of a split without any error.
    """

    split: str
    n: int
    groups: int | None = None
    """Number of groups, such as patients, if there are groups."""
    accuracy: float
    accuracy_interval: Span
    majority: float | None = None
    """Accuracy of always answering with the most frequent class of these images."""
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
    """Debiased calibration error of the confidence over equal-count bins; None with fewer than 100 images."""
    calibration_error_interval: Span | None = None
    calibration_in_the_large: float | None = None
    """Accuracy of the most probable classes minus their mean confidence: below 0 is overconfident."""
    calibration_in_the_large_interval: Span | None = None
    calibration_slope: float | None = None
    """Slope of being right on the log-odds of the confidence: below 1, high confidences are too high."""
    calibration_slope_interval: Span | None = None
    plain_calibration_error: float | None = None
    """ECE: the error over 15 equal-width bins, with the bias that chance adds; None likewise."""
    confusion: tuple[tuple[int, ...], ...]
    """Confusion matrix, images [target][prediction]."""
    per_class: tuple[PerClassMetrics, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers, as in report.json; unmeasured values are absent."""
        return config.write(self)

    def headline(self) -> str:
        """The primary metric in a sentence without its full stop."""
        low, high = self.accuracy_interval
        where = f"on {describe_images(self.n, self.split)}"
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
            f"{format_these(self.n, 'picture', 'does', 'do').capitalize()} not show that it is better than guessing: "
            "its agreement beyond chance (kappa) may be 0."
        )

    @property
    def majority_class(self) -> str:
        """The most frequent class of these images."""
        return max(self.per_class, key=lambda one: one.n).name

    def describe_absent_classes(self) -> str:
        """A sentence about classes of the model that none of these images has; empty if there are none."""
        absent = [one.name for one in self.per_class if not one.n]
        if not absent:
            return ""
        predicted = [one.name for one in self.per_class if not one.n and one.predicted]
        effect = "so they count in no mean over classes"
        if predicted:
            names = ", ".join(predicted[:5]) + (", ..." if len(predicted) > 5 else "")
            effect = f"and of those that were predicted ({names}) each counts 0 in macro F1"
        does = "does" if len(absent) == 1 else "do"
        return (
            f"{len(absent)} of {format_count(len(self.per_class), 'class', 'classes')} {does} not occur among "
            f"these pictures, {effect}."
        )

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The headline and one line per class, for the terminal."""
        n = f"n = {self.n:,}" + ("" if self.groups is None else f" in {format_count(self.groups, 'group')}")
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
            "calibration error": (self.calibration_error, self.calibration_error_interval),
            "  in the large": (self.calibration_in_the_large, self.calibration_in_the_large_interval),
            "  slope": (self.calibration_slope, self.calibration_slope_interval),
        }
        lines = [
            f"{name:<17} {_format_percent(share)}  (95 % interval {100 * span[0]:.2f} to {100 * span[1]:.2f} %)"
            for name, (share, span) in shares.items()
            if span
        ]
        lines[0] = lines[0].removesuffix(")") + f", {n})"
        if self.majority is not None:
            lines.insert(1, f"{'majority class':<17} {_format_percent(self.majority)}  (always {self.majority_class})")
        for name, (number, span) in numbers.items():
            interval = "" if span is None else f"  (95 % interval {span[0]:.4f} to {span[1]:.4f})"
            lines += [] if number is None else [f"{name:<17} {number:6.4f}{interval}"]
        if self.calibration_error is None:
            lines.append(f"{'calibration error':<17} unknown, which takes {MIN_IMAGES} pictures")
        remarks = [text for text in (self.describe_doubt(), self.describe_absent_classes()) if text]
        return "\n".join([*lines, *remarks, "", *self._per_class_lines()])

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
    confusion = np.bincount(table[:, 0].astype(np.int64), minlength=K * K).reshape(K, K)
    overall = _confusion_statistics(confusion, ordered)
    values = np.concatenate([overall, table[:, 1:].mean(0), _class_rates(confusion).ravel()])
    spans = _compute_intervals(table, confusion, probabilities, ordered, groups, seed, samples)
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
        majority=float(confusion.sum(1).max() / len(table)),
        **(auc_fields(auc.mean_roc_auc(defined, exclusive=len(defined) > 1)) if defined else {}),
        **calibration_fields(summarize_calibration(confidences, hits, groups), len(table)),
        plain_calibration_error=expected_calibration_error(confidences, hits) if len(table) >= MIN_IMAGES else None,
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
"""Followed by recall, precision and F1 of every class."""


def _per_image_table(
    targets: np.ndarray, predictions: np.ndarray, probabilities: np.ndarray, top: int | None
) -> np.ndarray:
    """Per image: index in the confusion matrix, top-k hit, log loss and Brier score, [n, 4]."""
    K, right = probabilities.shape[1], probabilities[np.arange(len(targets)), targets]
    columns = [
        targets * K + predictions,
        np.full(len(targets), np.nan) if top is None else (probabilities > right[:, None]).sum(1) < top,
        0.0 - np.log(np.maximum(right, SMALLEST)),
        np.square(probabilities - np.eye(K)[targets]).sum(1) / (2 if K == 2 else 1),
    ]
    return np.stack(columns, axis=1)


def _confusion_statistics(confusion: Int64[np.ndarray, "*S K K"], ordered: bool) -> Float64[np.ndarray, "*S 5"]:
    """The first five of OVERALL_NAMES of confusion matrices; NaN for one that a matrix does not define."""
    rates = _class_rates(confusion)
    kappa, quadratic = (_weighted_kappa(confusion, power) for power in (0, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a matrix without any image of a class
        recall, f1 = np.nanmean(rates[..., 0, :], axis=-1), np.nanmean(rates[..., 2, :], axis=-1)
    accuracy = np.trace(confusion, axis1=-2, axis2=-1) / confusion.sum((-2, -1))
    return np.stack([accuracy, recall, f1, kappa, quadratic if ordered else np.full_like(kappa, np.nan)], axis=-1)


def _class_rates(confusion: Int64[np.ndarray, "*S K K"]) -> Float64[np.ndarray, "*S 3 K"]:
    """Recall, precision and F1 of each class; NaN where there is none."""
    right, actual, predicted = np.diagonal(confusion, axis1=-2, axis2=-1), confusion.sum(-1), confusion.sum(-2)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.stack([right / actual, right / predicted, 2 * right / (actual + predicted)], axis=-2)


def _weighted_kappa(confusion: Int64[np.ndarray, "*S K K"], power: int) -> Float64[np.ndarray, "*S"]:
    """Cohen's kappa with weights |i - j| ** power (1 beside the diagonal for 0); NaN where it is undefined."""
    weights = _disagreement(confusion.shape[-1], power)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(1 - (weights * confusion).sum((-2, -1)) / _chance_disagreement(confusion, weights))


def _disagreement(K: int, power: int) -> Float64[np.ndarray, "K K"]:
    apart = np.abs(np.arange(K)[:, None] - np.arange(K))
    return (apart**power * (apart > 0)).astype(np.float64)


def _chance_disagreement(
    confusion: Int64[np.ndarray, "*S K K"], weights: Float64[np.ndarray, "K K"]
) -> Float64[np.ndarray, "*S"]:
    """The summed weights if targets and predictions were independent; NaN for none."""
    expected = np.einsum("...i,ij,...j->...", confusion.sum(-1), weights, confusion.sum(-2)) / confusion.sum((-2, -1))
    return np.where(expected > 0, expected, np.nan)


def _compute_intervals(
    table: np.ndarray,
    confusion: np.ndarray,
    probabilities: np.ndarray,
    ordered: bool,
    groups: np.ndarray | None,
    seed: int,
    samples: int,
) -> list[Interval | None]:
    """Intervals of OVERALL_NAMES, then of recall, precision and F1 of every class.

    Kappa has the bootstrap. Without an error every sample of it has the same value, and with one or two the samples
    hardly differ: its interval also holds that of the mean disagreement, with its chance level taken as known.
    """
    K = len(confusion)
    targets, predicted = table[:, 0] // K, table[:, 0] % K
    right = targets == predicted
    recalls: list[tuple[float, float]] = []
    f1s: list[tuple[float, float]] = []
    f1 = _class_rates(confusion)[2]
    rates: list[list[Interval | None]] = [[], [], []]
    for k in range(K):
        of_class, answered = targets == k, predicted == k
        rates[0].append(rate_interval(right, groups, of_class))
        rates[1].append(_answered_interval(of_class, answered, answered, groups))
        rates[2].append(f1_interval(of_class, answered, groups))
        if of_class.any():
            count = float(of_class.sum()) if groups is None else effective_count(groups[of_class])
            recalls.append((float(right[of_class].mean()), count))
        if of_class.any() or answered.any():
            f1s.append((float(f1[k]), count if of_class.any() else 0.0))
    most = None if groups is None else effective_count(groups)
    units = len(table) if groups is None else len(np.unique(groups))
    drawn = bootstrap_counts(table[:, 0].astype(np.int64), K * K, seed, samples, groups).reshape(-1, K, K)
    kappas = percentile_intervals(_confusion_statistics(drawn, ordered)[:, 3:], units)
    disagreement = [_disagreement(K, power).ravel()[table[:, 0].astype(np.int64)] for power in (0, 2)]
    losses = np.stack([*disagreement, table[:, 2], table[:, 3]], axis=1)
    bounds = (1.0, (K - 1) ** 2, _loss_of_a_wrong_answer(probabilities), 1.0 if K == 2 else 2.0)
    means = bounded_mean_intervals(losses, bounds, seed, samples, groups=groups)
    for place, power in ((0, 0), (1, 2)):
        by_chance = float(_chance_disagreement(confusion, _disagreement(K, power))) / len(table)
        span, (low, high) = kappas[place], means[place]
        if span is not None and by_chance > 0:
            low, high = 1 - high / by_chance, 1 - low / by_chance
            kappas[place] = Interval(max(-1.0, min(span.low, low)), min(1.0, max(span.high, high)))
    return [
        proportion_interval(right, groups), mean_of_rates_interval(recalls, most), _macro_f1_interval(f1s, most),
        *kappas, proportion_interval(table[:, 1] == 1, groups), *means[2:], *rates[0], *rates[1], *rates[2],
    ]  # fmt: skip


def _macro_f1_interval(rates: list[tuple[float, float]], most: float | None) -> Interval:
    """Interval of the mean F1, whose rates are taken to be as uncertain as recalls.

    A class that no image has was predicted by mistake and has an F1 of 0. Whether it counts is luck: the interval holds
    both that of all rates and that of the classes that occur.

    Args:
        rates: of each class, with the number of its images.
        most: as `mean_of_rates_interval`.
    """
    each = [(rate, max(count, 1.0)) for rate, count in rates]
    intervals = [
        mean_of_rates_interval(some, most)
        for some in (each, [one for one, (_, n) in zip(each, rates, strict=True) if n])
    ]
    return Interval(min(one.low for one in intervals), max(one.high for one in intervals))


def _loss_of_a_wrong_answer(probabilities: Float64[np.ndarray, "n K"]) -> float:
    """Mean over images of the expected log loss if the most probable class were wrong, by the probabilities of the
    others: what an error that no image has shown would cost.
    """
    others = np.sort(np.maximum(probabilities, SMALLEST), axis=1)[:, :-1]
    return float(((others * -np.log(others)).sum(1) / others.sum(1)).mean()) if others.shape[1] else 0.0


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


def rate_interval(mask: np.ndarray, groups: np.ndarray | None, rows: np.ndarray) -> Interval | None:
    """Interval of a proportion among some rows; None without any."""
    return proportion_interval(mask[rows], None if groups is None else groups[rows]) if rows.any() else None


def average_precision_fields(positive: np.ndarray, scores: np.ndarray, groups: np.ndarray | None) -> dict[str, Any]:
    """Average precision, as scikit-learn's, with Wilson's interval of a rate of as many images as are positive.

    Source: Boyd, Eng and Page 2013, "Area under the precision-recall curve: point estimates and confidence intervals",
    for the count; Wilson's interval is in place of their logistic one.
    """
    points = compute_roc_points(positive, scores)
    hits, alarms = points.true_positives[1:], points.false_positives[1:]
    value = float((np.diff(points.true_positives) * hits / (hits + alarms)).sum() / hits[-1])
    count = float(positive.sum()) if groups is None else effective_count(groups[positive])
    return metric_fields("average_precision", value, wilson_interval_of_share(value, count))


def f1_interval(present: np.ndarray, predicted: np.ndarray, groups: np.ndarray | None) -> Interval | None:
    """Interval of F1 = 2 J / (1 + J); J is the proportion of the images present or predicted that are both."""
    jaccard = _answered_interval(present, predicted, present | predicted, groups)
    return None if jaccard is None else Interval(*(2 * end / (1 + end) for end in jaccard))


def _answered_interval(
    present: np.ndarray, predicted: np.ndarray, rows: np.ndarray, groups: np.ndarray | None
) -> Interval | None:
    """Interval of the proportion of rows that are present and predicted, where the answers decide what the rows are.

    Groups count by the design effect of all images, or of the present ones if it is larger: that of the rows changes
    with the answers, and a better answer could have a lower bound.
    """
    n, shares = int(rows.sum()), [1.0]
    if not n:
        return None
    if groups is not None:
        shares += [effective_count(own) / len(own) for own in (groups, groups[present]) if len(own)]
    return mean_of_rates_interval([(float((present & predicted).sum()) / n, n * min(shares))])


def limit_low(interval: Interval | None, low: float) -> Interval | None:
    """An interval that begins no higher than `low`, the lower bound of the same images without any error."""
    return None if interval is None else Interval(min(interval.low, low), interval.high)


def describe_images(n: int, split: str, source: str = "") -> str:
    """The images of a split in words, with their number; those of the training are not called held out."""
    if split.endswith(CASES_SUFFIX):
        return f"{n:,} cases{f' of {source}' if source else ''} ({split.removesuffix(CASES_SUFFIX)})"
    kinds = {"train": "pictures that it has learnt with their answers", "all": "pictures"}
    return f"{n:,} {kinds.get(split, 'held-out pictures')}{f' of {source}' if source else ''} ({split})"


def calibration_fields(summary: CalibrationSummary, n: int) -> dict[str, Any]:
    """The fields of a metrics class about the calibration of n images; unmeasured ones are left out.

    Of fewer than MIN_IMAGES any calibration error is chance, and a small one would read as proof.
    """
    fields: dict[str, Any] = {}
    for name, (value, interval) in summary.named_figures().items():
        if name == "calibration_error" and n < MIN_IMAGES:
            continue
        fields |= {name: value, f"{name}_interval": interval}
    return fields


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
