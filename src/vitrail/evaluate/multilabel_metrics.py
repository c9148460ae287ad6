"""What stored answers to the task `labels` are worth: ranking, precision and rates of each label, with intervals.

Labels that nobody knows are left out of every figure, and a label with few known positives or negatives out of the
means. Every figure can be recomputed from `predictions/test.csv` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from .. import config
from ..errors import DataError
from ..formatting import format_count
from ..stats import auc
from ..stats.auc import RocAuc, roc_auc_with_influence
from ..stats.intervals import Interval, bootstrap_intervals
from .calibration import debiased_calibration_error
from .metrics import auc_fields, metric_fields, proportion_interval, require_finite
from .predictions import LABEL_THRESHOLD, MultilabelPredictions

MIN_PER_SIDE = 10
"""Known positives, and known negatives, that a label needs for a ranking that can be told from luck."""

Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class PerLabelMetrics:
    """One label. None where the split has nothing to measure it on."""

    name: str
    n: int
    """Pictures of which it is known."""
    positives: int
    """Pictures that have it."""
    rare: bool
    """Fewer than ten known pictures with it, or without it: left out of the means, and without an interval."""
    prevalence: float | None = None
    """Share of the known pictures that have it, which is also the average precision of a guess."""
    auroc: float | None = None
    """Chance that a picture with it scores above one without it."""
    auroc_interval: Span | None = None
    average_precision: float | None = None
    """Area under precision by recall."""
    average_precision_interval: Span | None = None
    sensitivity_at_90: float | None = None
    """The largest sensitivity that leaves a specificity of at least 90 %, of any threshold."""
    sensitivity_at_90_interval: Span | None = None
    f1: float | None = None
    """Harmonic mean of precision and sensitivity, of the answers."""
    f1_interval: Span | None = None
    sensitivity: float | None = None
    """Share of the pictures with it that are answered so."""
    sensitivity_interval: Span | None = None
    specificity: float | None = None
    """Share of the pictures without it that are answered so."""
    specificity_interval: Span | None = None
    calibration_error: float | None = None
    """Mean distance of probability from share over 15 bins of as many pictures each, without what chance adds."""


@dataclass(frozen=True, kw_only=True)
class MultilabelMetrics:
    """All figures of one split; intervals are 95 %, means are over the labels that are not rare.

    Shares of pictures have Wilson's, areas under the ROC curve DeLong's, all others the percentile bootstrap. Where
    pictures come in groups, shares have the bootstrap too, it draws whole groups, and DeLong's sums go over groups.
    """

    split: str
    n: int
    """Pictures of which at least one label is known."""
    groups: int | None = None
    """Groups that the pictures come in, such as patients, if they do."""
    counted: int
    """Labels that the means are over."""
    log_loss: float
    """Mean binary cross-entropy over all known labels of all pictures, in nats."""
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
        """Plain dictionaries, lists and numbers, as they stand in report.json; what could not be measured is absent."""
        return config.write(self)

    def headline(self) -> str:
        """The figure a person asks for first, in a sentence without its full stop."""
        where = f"on {self.n:,} held-out pictures ({self.split})"
        if self.auroc is None or self.auroc_interval is None:
            return f"Log loss {where}: {self.log_loss:.4f}; {self.describe_rare_labels()}"
        low, high = self.auroc_interval
        mean = f"mean of {self.counted} labels, " if len(self.per_label) > 1 else ""
        rest = f"; {self.describe_rare_labels()}" if self.rare else ""
        return f"AUROC {where}: {self.auroc:.4f} ({mean}95 % interval {low:.4f} to {high:.4f}){rest}"

    def describe_rare_labels(self) -> str:
        """Which labels the means leave out and why; empty if none."""
        if not self.rare:
            return ""
        names = ", ".join(self.rare[:5]) + (f" and {len(self.rare) - 5} more" if len(self.rare) > 5 else "")
        return f"fewer than {MIN_PER_SIDE} known pictures with or without it, so not in the mean: {names}"

    def table(self) -> str:
        """The headline and one line per label, for the terminal."""
        width = max(5, *(len(one.name) for one in self.per_label))
        heads = f"{'label':<{width}}  {'known':>6}  {'with it':>7}  {'AUROC':>6}  {'95 % interval':>16}"
        n = f"n = {self.n:,}" + ("" if self.groups is None else f" in {self.groups:,} groups")
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
    """Every figure of one table; a target from 0.5 on counts as a picture with the label.

    Args:
        groups: of each picture, such as its patient.
        seed, samples: of the bootstrap.

    Raises:
        DataError: no label of any picture is known, or an answer is no number.

    Source: definitions as in scikit-learn.
    """
    known, rows = predictions.known_mask, predictions.known_mask.any(1)
    if predictions.targets is None or not rows.any():
        raise DataError(
            f"Metrics need at least one picture with a known label. Got "
            f"{format_count(len(predictions), 'picture')}, none "
            "with a target; `vitrail predict` answers pictures without one."
        )
    require_finite(predictions.probabilities[known])
    known, targets = known[rows], predictions.targets[rows].astype(np.float64)
    chances, answers = predictions.probabilities[rows].astype(np.float64), predictions.labels[rows]
    groups = None if groups is None else groups[rows]
    labels = [
        RankedLabel.from_scores(known[:, k], targets[:, k] >= LABEL_THRESHOLD, chances[:, k], answers[:, k])
        for k in range(len(predictions.classes))
    ]
    common = np.array([not _is_rare(one) for one in labels])
    losses = label_losses(predictions)[rows]
    sums = np.stack([losses.sum(1), known.sum(1)], axis=1)  # [n, 2]

    def compute_figures(rows: np.ndarray) -> np.ndarray:
        """[1 + 2 + labels * FIGURES]: log loss, two means, and every figure of every label."""
        counts = np.bincount(rows, minlength=len(sums))
        loss, n = counts @ sums
        each = np.array([one.compute_metrics_for_counts(counts) for one in labels])  # [labels, FIGURES]
        means = each[common].mean(0) if common.any() else np.full(len(RANKING_METRICS), np.nan)
        return np.concatenate([[loss / n, *means[:NUM_MEANS]], each.ravel()])

    everything = np.arange(len(sums))
    values, spans = (
        compute_figures(everything),
        bootstrap_intervals(everything, compute_figures, seed, samples, groups=groups),
    )
    per_label = tuple(
        _compute_label_metrics(name, labels[k], values[start:], spans[start:], groups)
        for k, name in enumerate(predictions.classes)
        for start in [1 + NUM_MEANS + k * len(RANKING_METRICS)]
    )
    whole: dict[str, Any] = {}
    for place, name in enumerate(("log_loss", *RANKING_METRICS[:NUM_MEANS])):
        whole |= metric_fields(name, values[place], spans[place])
    ranks = [one.compute_auc(groups) for one, mine in zip(labels, common, strict=True) if mine]
    return MultilabelMetrics(
        split=predictions.split,
        n=len(targets),
        groups=None if groups is None else len(np.unique(groups)),
        counted=int(common.sum()),
        per_label=per_label,
        **whole,
        **(auc_fields(auc.mean_roc_auc([rank for rank in ranks if rank is not None])) if ranks else {}),
    )


NUM_MEANS = 2
"""The first of `FIGURES` that are also given as means over labels: average precision and F1."""


def _is_rare(label: RankedLabel) -> bool:
    return min(label.positives, label.negatives) < MIN_PER_SIDE


def _compute_label_metrics(
    name: str, label: RankedLabel, values: np.ndarray, spans: list[Interval | None], groups: np.ndarray | None
) -> PerLabelMetrics:
    """One label over the pictures of which it is known; `values` and `spans` begin with its figures."""
    rare, rank = _is_rare(label), label.compute_auc(groups)
    figures: dict[str, Any] = {}
    for figure, value, span in zip(RANKING_METRICS, values, spans, strict=False):
        figures |= metric_fields(figure, value, None if rare else span)
    for figure, kind in (("sensitivity", label.positive), ("specificity", ~label.positive)):
        right = (label.predicted == label.positive)[kind]
        own = None if groups is None else groups[label.rows][kind]
        figures |= {f"{figure}_interval": proportion_interval(right, own, spans[RANKING_METRICS.index(figure)])}
    if rank is not None:
        figures |= {"auroc": rank.value} if rare else auc_fields(rank)
    n = label.positives + label.negatives
    return PerLabelMetrics(
        name=name,
        n=n,
        positives=label.positives,
        rare=rare,
        prevalence=label.positives / n if n else None,
        calibration_error=label.compute_calibration_error() if n else None,
        **figures,
    )


def _format_4_digits(number: float | None) -> str:
    return "     -" if number is None else f"{number:6.4f}"


def _format_interval(interval: Span | None) -> str:
    return "no label can be ranked" if interval is None else f"95 % interval {interval[0]:.4f} to {interval[1]:.4f}"


# One label with its pictures in the order of their scores, so that figures of drawn samples are cheap.

RANKING_METRICS = ("average_precision", "f1", "sensitivity", "specificity", "sensitivity_at_90")
"""What `Ranked.figures` gives, in order."""
TARGET_SPECIFICITY = 0.9


@dataclass(frozen=True)
class RankedLabel:
    """A label over the n pictures of a table, of which m are known."""

    n: int
    rows: Int64[np.ndarray, " m"]
    """The known pictures, the highest score first."""
    positive: Bool[np.ndarray, " m"]
    """Which of them have it."""
    scores: Float64[np.ndarray, " m"]
    predicted: Bool[np.ndarray, " m"]
    """Which are answered so."""
    last_of_tie: Int64[np.ndarray, " s"]
    """Where each run of equal scores ends."""

    @classmethod
    def from_scores(
        cls,
        known: Bool[np.ndarray, " n"],
        positive: Bool[np.ndarray, " n"],
        scores: Float64[np.ndarray, " n"],
        predicted: Bool[np.ndarray, " n"],
    ) -> RankedLabel:
        """In order."""
        rows = np.flatnonzero(known)
        rows = rows[np.argsort(-scores[rows], kind="stable")]
        ends = np.append(np.flatnonzero(np.diff(scores[rows])), len(rows) - 1) if len(rows) else np.zeros(0, np.int64)
        return cls(len(known), rows, positive[rows], scores[rows], predicted[rows], ends)

    @property
    def positives(self) -> int:
        """Known pictures with the label."""
        return int(self.positive.sum())

    @property
    def negatives(self) -> int:
        """Known pictures without it."""
        return int((~self.positive).sum())

    def compute_metrics_for_counts(
        self, counts: Int64[np.ndarray, " n"]
    ) -> Float64[np.ndarray, " compute_metrics_for_counts"]:
        """FIGURES where each picture of the table is there `counts` times; NaN for what these cannot show."""
        weights = counts[self.rows]
        ups, downs = weights * self.positive, weights * ~self.positive
        P, N = ups.sum(), downs.sum()
        found, alarms = (ups * self.predicted).sum(), (downs * self.predicted).sum()
        hits, wrong = (
            np.cumsum(ups)[self.last_of_tie],
            np.cumsum(downs)[self.last_of_tie],
        )  # answering from each score on
        with np.errstate(invalid="ignore", divide="ignore"):
            precision = hits / np.maximum(hits + wrong, 1)
            average_precision = (np.diff(hits, prepend=0) * precision).sum() / P
            f1 = 2 * found / (P + found + alarms)
            allowed = hits[wrong <= (1 - TARGET_SPECIFICITY) * N + 1e-9]
            best = (allowed[-1] if len(allowed) else 0) / P
            return np.array([average_precision, f1, found / P, 1 - alarms / N, best if N else np.nan])

    def compute_auc(self, groups: np.ndarray | None) -> RocAuc | None:
        """Under the ROC curve; None where all known pictures are of one kind."""
        if not (self.positives and self.negatives):
            return None
        known, positive, scores = np.zeros(self.n, bool), np.zeros(self.n, bool), np.zeros(self.n)
        known[self.rows], positive[self.rows], scores[self.rows] = True, self.positive, self.scores
        return roc_auc_with_influence(positive, scores, known, groups)

    def compute_calibration_error(self) -> float:
        """Of the probability of the label."""
        return debiased_calibration_error(self.scores, self.positive)


# What each known label of each picture costs: binary cross-entropy, for metrics and for comparisons alike.

MIN_PROBABILITY = np.finfo(np.float32).tiny
"""Probabilities count as at least this much, so that a loss is finite."""


def label_losses(predictions: MultilabelPredictions) -> Float64[np.ndarray, "n K"]:
    """Binary cross-entropy in nats, 0 where a label is not known."""
    known = predictions.known_mask
    targets = np.where(known, 0 if predictions.targets is None else predictions.targets, 0).astype(np.float64)
    chances = np.where(known, predictions.probabilities, 0.5).astype(np.float64)
    right = targets * np.log(np.maximum(chances, MIN_PROBABILITY)) + (1 - targets) * np.log(
        np.maximum(1 - chances, MIN_PROBABILITY)
    )
    return np.where(known, -right, 0.0)
