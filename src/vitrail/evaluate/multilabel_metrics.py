"""Multilabel metrics of stored predictions, with 95 % intervals: AUROC, average precision, F1 and rates of each label.

Unknown targets are left out of every metric, and labels with few known positives or negatives out of the means. Every
metric can be recomputed from `predictions/test.csv` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from .. import config
from ..formatting import format_count
from ..stats import auc
from ..stats.auc import RocAuc, roc_auc_with_influence
from ..stats.intervals import bounded_mean_intervals, effective_count, mean_of_rates_interval
from .calibration import summarize_calibration
from .metrics import (
    SMALLEST,
    auc_fields,
    average_precision_fields,
    calibration_fields,
    describe_images,
    f1_interval,
    metric_fields,
    no_targets_error,
    rate_interval,
    require_finite,
)
from .predictions import LABEL_THRESHOLD, MultilabelPredictions
from .threshold_curves import CurveSample, sensitivity_at

MIN_PER_SIDE = 10
"""Known positives, and known negatives, that a label needs to count in the means."""

Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class PerLabelMetrics:
    """Metrics of one label; None where the split cannot show them."""

    name: str
    n: int
    """Images with a known target."""
    positives: int
    """Images that have it."""
    rare: bool
    """Fewer than ten known positives or negatives: left out of the means, and without intervals."""
    prevalence: float | None = None
    """Fraction of the known images that have it, which is also the average precision of guessing."""
    auroc: float | None = None
    """Probability that an image with it scores above one without it."""
    auroc_interval: Span | None = None
    average_precision: float | None = None
    """Area under the precision-recall curve."""
    average_precision_interval: Span | None = None
    sensitivity_at_90: float | None = None
    """The largest sensitivity of any threshold with a specificity of at least 90 %."""
    sensitivity_at_90_interval: Span | None = None
    f1: float | None = None
    """Harmonic mean of precision and sensitivity of the predicted labels."""
    f1_interval: Span | None = None
    sensitivity: float | None = None
    """Fraction of the images with it that are predicted so."""
    sensitivity_interval: Span | None = None
    specificity: float | None = None
    """Fraction of the images without it that are predicted so."""
    specificity_interval: Span | None = None
    calibration_error: float | None = None
    """Debiased calibration error over equal-count bins; None with fewer than 100 images."""
    calibration_error_interval: Span | None = None
    calibration_in_the_large: float | None = None
    """Fraction of the known images that have it, minus their mean probability."""
    calibration_in_the_large_interval: Span | None = None
    calibration_slope: float | None = None
    """Slope of having it on the log-odds of the probability."""
    calibration_slope_interval: Span | None = None


@dataclass(frozen=True, kw_only=True)
class MultilabelMetrics:
    """All metrics of one split; intervals are 95 %, means are over the labels that are not rare.

    Intervals are as in `ClassificationMetrics`; those of average precision and F1 count as many images as have the
    label, that of the sensitivity at 90 % specificity is the ROC curve's.
    """

    split: str
    n: int
    """Images with at least one known label."""
    groups: int | None = None
    """Number of groups, such as patients, if there are groups."""
    counted: int
    """Number of labels in the means."""
    log_loss: float
    """Mean binary cross-entropy over all known labels, in nats."""
    log_loss_interval: Span
    per_label: tuple[PerLabelMetrics, ...]
    auroc: float | None = None
    auroc_interval: Span | None = None
    average_precision: float | None = None
    average_precision_interval: Span | None = None
    f1: float | None = None
    f1_interval: Span | None = None

    @property
    def rare(self) -> tuple[str, ...]:
        """The labels that the means leave out."""
        return tuple(one.name for one in self.per_label if one.rare)

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers, as in report.json; unmeasured values are absent."""
        return config.write(self)

    def headline(self) -> str:
        """The primary metric in a sentence without its full stop."""
        where = f"on {describe_images(self.n, self.split)}"
        if self.auroc is None or self.auroc_interval is None:
            return f"Log loss {where}: {self.log_loss:.4f}; {self.describe_rare_labels()}"
        low, high = self.auroc_interval
        mean = f"mean of {self.counted} labels, " if len(self.per_label) > 1 else ""
        rest = f"; {self.describe_rare_labels()}" if self.rare else ""
        return f"AUROC {where}: {self.auroc:.4f} ({mean}95 % interval {low:.4f} to {high:.4f}){rest}"

    def describe_rare_labels(self) -> str:
        """The labels left out of the means, and why; empty if none."""
        if not self.rare:
            return ""
        names = ", ".join(self.rare[:5]) + (f" and {len(self.rare) - 5} more" if len(self.rare) > 5 else "")
        return f"fewer than {MIN_PER_SIDE} known pictures with or without it, so not in the mean: {names}"

    def __str__(self) -> str:
        return self.table()

    def table(self) -> str:
        """The headline and one line per label, for the terminal."""
        width = max(5, *(len(one.name) for one in self.per_label))
        heads = f"{'label':<{width}}  {'known':>6}  {'with it':>7}  {'AUROC':>6}  {'95 % interval':>16}"
        n = f"n = {self.n:,}" + ("" if self.groups is None else f" in {format_count(self.groups, 'group')}")
        lines = [
            f"AUROC             {_format_4_digits(self.auroc)}  ({_format_interval(self.auroc_interval)}, {n})",
            (
                f"average precision {_format_4_digits(self.average_precision)}  "
                f"({_format_interval(self.average_precision_interval)})"
            ),
            f"macro F1          {_format_4_digits(self.f1)}  ({_format_interval(self.f1_interval)})",
            f"log loss          {self.log_loss:6.4f}  ({_format_interval(self.log_loss_interval)})",
            "",
            f"{heads}  precision  {'F1':>6}  sensitivity  specificity",
        ]
        for one in self.per_label:
            low_high = "-" if one.auroc_interval is None else "{:.4f} to {:.4f}".format(*one.auroc_interval)
            lines.append(
                f"{one.name:<{width}}  {one.n:>6}  {one.positives:>7}  {_format_4_digits(one.auroc)}  {low_high:>16}  "
                f"{_format_4_digits(one.average_precision):>9}  {_format_4_digits(one.f1)}  "
                f"{_format_4_digits(one.sensitivity):>11}  "
                f"{_format_4_digits(one.specificity):>11}"
            )
        return "\n".join([*lines, *([f"({self.describe_rare_labels()})"] if self.rare else [])])


def compute_multilabel_metrics(
    predictions: MultilabelPredictions, groups: np.ndarray | None = None, seed: int = 0, samples: int = 1000
) -> MultilabelMetrics:
    """Compute every metric of one table; a target of at least 0.5 counts as positive.

    Args:
        groups: of each image, such as its patient.
        seed, samples: of the random weights of the log loss.

    Raises:
        DataError: no label of any image is known, or a prediction is not finite.

    Source: definitions as in scikit-learn.
    """
    known, rows = predictions.known_mask, predictions.known_mask.any(1)
    if predictions.targets is None or not rows.any():
        raise no_targets_error(len(predictions), "label")
    require_finite(predictions.probabilities[known])
    known, present = known[rows], predictions.targets[rows] >= LABEL_THRESHOLD
    chances, predicted = predictions.probabilities[rows].astype(np.float64), predictions.indicators[rows]
    groups = None if groups is None else groups[rows]
    per_label, areas, counts = [], [], []
    for k, name in enumerate(predictions.classes):
        there = known[:, k]
        own = None if groups is None else groups[there]
        sample = CurveSample(present[there, k], chances[there, k], own)
        area = roc_auc_with_influence(present[:, k], chances[:, k], there, groups) if _has_both(sample) else None
        per_label.append(_compute_label_metrics(name, sample, predicted[there, k], area))
        if not per_label[-1].rare:
            areas.append(area)
            counts.append(float(sample.positive.sum()) if own is None else effective_count(own[sample.positive]))
    losses = label_losses(predictions)[rows][known]
    units = np.flatnonzero(known.any(1)) if groups is None else groups  # the labels of an image are alike
    wrong = -np.log(np.maximum(np.minimum(chances, 1 - chances)[known], SMALLEST))
    (loss_interval,) = bounded_mean_intervals(
        losses[:, None], [float(wrong.mean())], seed, samples, groups=units[np.nonzero(known)[0]]
    )
    whole: dict[str, Any] = {}
    most = None if groups is None else effective_count(groups)
    for metric in ("average_precision", "f1") if counts else ():
        values = [getattr(one, metric) for one in per_label if not one.rare]
        span = mean_of_rates_interval(list(zip(values, counts, strict=True)), most)
        whole |= metric_fields(metric, float(np.mean(values)), span)
    return MultilabelMetrics(
        split=predictions.split,
        n=len(present),
        groups=None if groups is None else len(np.unique(groups)),
        counted=len(counts),
        log_loss=float(losses.mean()),
        log_loss_interval=loss_interval,
        per_label=tuple(per_label),
        **whole,
        **(auc_fields(auc.mean_roc_auc([one for one in areas if one is not None])) if areas else {}),
    )


TARGET_SPECIFICITY = 0.9


def _has_both(sample: CurveSample) -> bool:
    return bool(sample.positive.any() and not sample.positive.all())


def _compute_label_metrics(
    name: str, sample: CurveSample, predicted: Bool[np.ndarray, " m"], area: RocAuc | None
) -> PerLabelMetrics:
    """Metrics of one label over its known images; a rare one has only the intervals of rates."""
    positive, groups, n = sample.positive, sample.groups, len(sample.positive)
    positives = int(positive.sum())
    fields: dict[str, Any] = {}
    if positives or predicted.any():
        f1 = 2 * float((predicted & positive).sum()) / float(positives + predicted.sum())
        fields |= metric_fields("f1", f1, f1_interval(positive, predicted, groups))
    if positives:
        fields |= average_precision_fields(positive, sample.scores, groups)
    if area is not None:
        points = sample.points()
        best = float(points.sensitivity[points.specificity >= TARGET_SPECIFICITY - 1e-9].max())
        fields |= metric_fields("sensitivity_at_90", best, sensitivity_at(sample, TARGET_SPECIFICITY).interval)
        fields |= auc_fields(area)
    is_rare = min(positives, n - positives) < MIN_PER_SIDE
    if is_rare:
        fields = {field: value for field, value in fields.items() if not field.endswith("_interval")}
    for metric, kind in (("sensitivity", positive), ("specificity", ~positive)):
        if kind.any():
            right = predicted == positive
            fields |= metric_fields(metric, float(right[kind].mean()), rate_interval(right, groups, kind))
    return PerLabelMetrics(
        name=name,
        n=n,
        positives=positives,
        rare=is_rare,
        prevalence=positives / n if n else None,
        **(calibration_fields(summarize_calibration(sample.scores, positive, groups), n) if n else {}),
        **fields,
    )


def _format_4_digits(number: float | None) -> str:
    return "     -" if number is None else f"{number:6.4f}"


def _format_interval(interval: Span | None) -> str:
    return "no label can be ranked" if interval is None else f"95 % interval {interval[0]:.4f} to {interval[1]:.4f}"


# -- Loss of each label

MIN_PROBABILITY = np.finfo(np.float32).tiny
"""Lower bound of probabilities in losses, so that these are finite."""


def label_losses(predictions: MultilabelPredictions) -> Float64[np.ndarray, "n K"]:
    """Binary cross-entropy of each label in nats, 0 where unknown."""
    known = predictions.known_mask
    targets = np.where(known, 0 if predictions.targets is None else predictions.targets, 0).astype(np.float64)
    chances = np.where(known, predictions.probabilities, 0.5).astype(np.float64)
    right = targets * np.log(np.maximum(chances, MIN_PROBABILITY)) + (1 - targets) * np.log(
        np.maximum(1 - chances, MIN_PROBABILITY)
    )
    return np.where(known, -right, 0.0)
