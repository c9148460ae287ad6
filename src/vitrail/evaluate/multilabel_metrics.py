"""Multilabel metrics of stored predictions, with 95 % intervals: AUROC, average precision, F1 and rates of each label.

Unknown targets are left out of every metric, and labels with few known positives or negatives out of the means. Every
metric can be recomputed from `predictions/test.csv` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from .. import config
from ..formatting import format_count
from ..stats import auc
from ..stats.auc import RocAuc, roc_auc_with_influence
from ..stats.intervals import (
    Interval,
    bootstrap_intervals,
    bounded_mean_intervals,
    effective_count,
    mean_of_rates_interval,
)
from .calibration import summarize_calibration
from .metrics import (
    SMALLEST,
    auc_fields,
    calibration_fields,
    describe_images,
    f1_interval,
    limit_low,
    metric_fields,
    no_targets_error,
    rate_interval,
    require_finite,
)
from .predictions import LABEL_THRESHOLD, MultilabelPredictions

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

    Intervals are as in `ClassificationMetrics`; those of average precision and of the sensitivity at 90 % specificity
    begin no higher than that of the sensitivity of a label without any miss.
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
        seed, samples: of the bootstrap.

    Raises:
        DataError: no label of any image is known, or a prediction is not finite.

    Source: definitions as in scikit-learn.
    """
    known, rows = predictions.known_mask, predictions.known_mask.any(1)
    if predictions.targets is None or not rows.any():
        raise no_targets_error(len(predictions), "label")
    require_finite(predictions.probabilities[known])
    known, targets = known[rows], predictions.targets[rows].astype(np.float64)
    chances, predicted = predictions.probabilities[rows].astype(np.float64), predictions.indicators[rows]
    groups = None if groups is None else groups[rows]
    labels = [
        RankedLabel.from_scores(known[:, k], targets[:, k] >= LABEL_THRESHOLD, chances[:, k], predicted[:, k])
        for k in range(len(predictions.classes))
    ]
    common = np.array([not one.is_rare for one in labels])
    losses = label_losses(predictions)[rows]
    sums = np.stack([losses.sum(1), known.sum(1)], axis=1)  # [n, 2]

    def compute_statistics(rows: np.ndarray) -> np.ndarray:
        """Log loss, two means, and RANKING_METRICS of every label: [1 + NUM_MEANS + labels * len(RANKING_METRICS)]."""
        counts = np.bincount(rows, minlength=len(sums))
        loss, n = counts @ sums
        each = np.array([one.compute_metrics_for_counts(counts) for one in labels])  # [labels, metrics]
        means = each[common].mean(0) if common.any() else np.full(len(RANKING_METRICS), np.nan)
        return np.concatenate([[loss / n, *means[:NUM_MEANS]], each.ravel()])

    everything = np.arange(len(sums))
    values = compute_statistics(everything)
    spans = bootstrap_intervals(everything, compute_statistics, seed, samples, groups=groups)
    units = np.flatnonzero(known.any(1)) if groups is None else groups  # the labels of an image are alike
    wrong = -np.log(np.maximum(np.minimum(chances, 1 - chances)[known], SMALLEST))
    (spans[0],) = bounded_mean_intervals(
        losses[known][:, None], [float(wrong.mean())], seed, samples, groups=units[np.nonzero(known)[0]]
    )
    perfect = [(1.0, one.count_positives(groups)) for one in labels if not one.is_rare]
    for place in range(1, 1 + NUM_MEANS if perfect else 1):
        most = None if groups is None else effective_count(groups)
        spans[place] = limit_low(spans[place], mean_of_rates_interval(perfect, most).low)
    per_label = tuple(
        _compute_label_metrics(name, labels[k], values[start:], spans[start:], groups)
        for k, name in enumerate(predictions.classes)
        for start in [1 + NUM_MEANS + k * len(RANKING_METRICS)]
    )
    whole: dict[str, Any] = {}
    for place, name in enumerate(("log_loss", *RANKING_METRICS[:NUM_MEANS])):
        whole |= metric_fields(name, values[place], spans[place])
    aucs = [one.compute_auc(groups) for one, is_common in zip(labels, common, strict=True) if is_common]
    return MultilabelMetrics(
        split=predictions.split,
        n=len(targets),
        groups=None if groups is None else len(np.unique(groups)),
        counted=int(common.sum()),
        per_label=per_label,
        **whole,
        **(auc_fields(auc.mean_roc_auc([one for one in aucs if one is not None])) if aucs else {}),
    )


NUM_MEANS = 2
"""The first of RANKING_METRICS that are also averaged over labels: average precision and F1."""


def _compute_label_metrics(
    name: str, label: RankedLabel, values: np.ndarray, spans: list[Interval | None], groups: np.ndarray | None
) -> PerLabelMetrics:
    """Metrics of one label over its known images; `values` and `spans` begin with its RANKING_METRICS."""
    roc_auc, n = label.compute_auc(groups), label.positives + label.negatives
    fields: dict[str, Any] = {}
    low = mean_of_rates_interval([(1.0, label.count_positives(groups))]).low if label.positives else 0.0
    for metric, value, span in zip(RANKING_METRICS, values, spans, strict=False):
        fields |= metric_fields(metric, value, None if label.is_rare else limit_low(span, low))
    own = None if groups is None else groups[label.rows]
    if not label.is_rare:
        fields["f1_interval"] = f1_interval(label.positive, label.predicted, own)
    for metric, kind in (("sensitivity", label.positive), ("specificity", ~label.positive)):
        fields[f"{metric}_interval"] = rate_interval(label.predicted == label.positive, own, kind)
    if roc_auc is not None:
        fields |= {"auroc": roc_auc.value} if label.is_rare else auc_fields(roc_auc)
    return PerLabelMetrics(
        name=name,
        n=n,
        positives=label.positives,
        rare=label.is_rare,
        prevalence=label.positives / n if n else None,
        **(calibration_fields(summarize_calibration(label.scores, label.positive, own), n) if n else {}),
        **fields,
    )


def _format_4_digits(number: float | None) -> str:
    return "     -" if number is None else f"{number:6.4f}"


def _format_interval(interval: Span | None) -> str:
    return "no label can be ranked" if interval is None else f"95 % interval {interval[0]:.4f} to {interval[1]:.4f}"


# -- One label sorted by score, so that the metrics of a bootstrap sample are cheap

RANKING_METRICS = ("average_precision", "f1", "sensitivity", "specificity", "sensitivity_at_90")
"""What `RankedLabel.compute_metrics_for_counts` returns, in order."""
TARGET_SPECIFICITY = 0.9


@dataclass(frozen=True)
class RankedLabel:
    """One label of the n images of a table, m of them known, sorted by falling score."""

    n: int
    rows: Int64[np.ndarray, " m"]
    """Indices of the known images."""
    positive: Bool[np.ndarray, " m"]
    """Their targets."""
    scores: Float64[np.ndarray, " m"]
    predicted: Bool[np.ndarray, " m"]
    """Their predicted labels."""
    last_of_tie: Int64[np.ndarray, " s"]
    """Last index of each run of equal scores."""

    @classmethod
    def from_scores(
        cls,
        known: Bool[np.ndarray, " n"],
        positive: Bool[np.ndarray, " n"],
        scores: Float64[np.ndarray, " n"],
        predicted: Bool[np.ndarray, " n"],
    ) -> RankedLabel:
        """Select the known images and sort them by score."""
        rows = np.flatnonzero(known)
        rows = rows[np.argsort(-scores[rows], kind="stable")]
        ends = np.append(np.flatnonzero(np.diff(scores[rows])), len(rows) - 1) if len(rows) else np.zeros(0, np.int64)
        return cls(len(known), rows, positive[rows], scores[rows], predicted[rows], ends)

    @property
    def positives(self) -> int:
        """Number of known images with the label."""
        return int(self.positive.sum())

    @property
    def negatives(self) -> int:
        """Number of known images without it."""
        return int((~self.positive).sum())

    def count_positives(self, groups: np.ndarray | None) -> float:
        """Number of positives, or with groups their `effective_count`."""
        return float(self.positives) if groups is None else effective_count(groups[self.rows[self.positive]])

    @property
    def is_rare(self) -> bool:
        """Whether the means leave it out."""
        return min(self.positives, self.negatives) < MIN_PER_SIDE

    def compute_metrics_for_counts(self, counts: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, " metrics"]:
        """RANKING_METRICS of a sample that holds image i of the table counts[i] times; NaN for undefined ones."""
        weights = counts[self.rows]
        ups, downs = weights * self.positive, weights * ~self.positive
        P, N = ups.sum(), downs.sum()
        true_positives, false_positives = (ups * self.predicted).sum(), (downs * self.predicted).sum()
        hits, wrong = np.cumsum(ups)[self.last_of_tie], np.cumsum(downs)[self.last_of_tie]  # at each threshold
        with np.errstate(invalid="ignore", divide="ignore"):
            precision = hits / np.maximum(hits + wrong, 1)
            average_precision = (np.diff(hits, prepend=0) * precision).sum() / P
            f1 = 2 * true_positives / (P + true_positives + false_positives)
            allowed = hits[wrong <= (1 - TARGET_SPECIFICITY) * N + 1e-9]
            best = (allowed[-1] if len(allowed) else 0) / P
            sensitivity, specificity = true_positives / P, 1 - false_positives / N
            return np.array([average_precision, f1, sensitivity, specificity, best if N else np.nan])

    def compute_auc(self, groups: np.ndarray | None) -> RocAuc | None:
        """Area under the ROC curve; None where all known images are positive, or all negative."""
        if not (self.positives and self.negatives):
            return None
        known, positive, scores = np.zeros(self.n, bool), np.zeros(self.n, bool), np.zeros(self.n)
        known[self.rows], positive[self.rows], scores[self.rows] = True, self.positive, self.scores
        return roc_auc_with_influence(positive, scores, known, groups)


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
