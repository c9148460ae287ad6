"""What stored predictions are worth: accuracy, balance, agreement, ranking and calibration, with intervals.

Every figure here can be recomputed from `predictions/test.csv` alone; intervals also take the groups, where there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import config
from ..errors import DataError
from ..formatting import format_count
from ..stats import auc
from ..stats.auc import RocAuc
from ..stats.intervals import Interval, bootstrap_intervals, wilson_interval
from .calibration import debiased_calibration_error, expected_calibration_error
from .predictions import UNKNOWN_CLASS, ClassificationPredictions

Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class PerClassMetrics:
    """One class against all others. None where the split has nothing to measure it on."""

    name: str
    n: int
    """Pictures of this class."""
    predicted: int
    """Pictures said to be of this class."""
    precision: float | None = None
    """Share of those said to be of it that are."""
    precision_interval: Span | None = None
    recall: float | None = None
    """Share of its pictures that were found."""
    recall_interval: Span | None = None
    f1: float | None = None
    """Harmonic mean of precision and recall."""
    f1_interval: Span | None = None
    auroc: float | None = None
    """Chance that a picture of it scores above a picture of another class."""
    auroc_interval: Span | None = None


@dataclass(frozen=True, kw_only=True)
class ClassificationMetrics:
    """All figures of one split; intervals are 95 %.

    Shares of pictures have Wilson's, areas under the ROC curve DeLong's, all others the percentile bootstrap. Where
    pictures come in groups, shares have the bootstrap too, it draws whole groups, and DeLong's sums go over groups.
    Where nothing is wrong, balanced accuracy, F1 and kappa have the interval of the accuracy.
    """

    split: str
    n: int
    groups: int | None = None
    """Groups that the pictures come in, such as patients, if they do."""
    accuracy: float
    accuracy_interval: Span
    balanced_accuracy: float
    """Mean recall over the classes that occur."""
    balanced_accuracy_interval: Span
    macro_f1: float
    """Mean F1 over the classes that occur or were answered."""
    macro_f1_interval: Span
    top: int | None = None
    """How many of the likeliest classes may hold the right one: two, or five where there are more than ten classes."""
    top_accuracy: float | None = None
    """Share of the pictures where they do."""
    top_accuracy_interval: Span | None = None
    kappa: float | None = None
    """Cohen's: agreement beyond what chance gives; 0 is a guess, 1 is perfect."""
    kappa_interval: Span | None = None
    quadratic_kappa: float | None = None
    """The same with errors weighted by the square of their distance, where the classes have an order."""
    quadratic_kappa_interval: Span | None = None
    auroc: float | None = None
    """Mean over classes, one against the rest."""
    auroc_interval: Span | None = None
    log_loss: float
    """Mean of -log(probability of the right class), in nats."""
    log_loss_interval: Span
    brier: float
    """Mean squared distance of the probabilities from the truth, summed over classes; for two classes half of it."""
    brier_interval: Span
    calibration_error: float
    """Mean distance of confidence from accuracy over 15 bins of as many pictures each, without what chance adds."""
    plain_calibration_error: float
    """The same over 15 bins of equal width with what chance adds, which others call ECE."""
    confusion: tuple[tuple[int, ...], ...]
    """Pictures [target][answer]."""
    per_class: tuple[PerClassMetrics, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers, as they stand in report.json; what could not be measured is absent."""
        return config.write(self)

    def headline(self) -> str:
        """The figure a person asks for first, in a sentence without its full stop."""
        low, high = self.accuracy_interval
        where = f"on {self.n:,} held-out pictures ({self.split})"
        return f"Accuracy {where}: {self.accuracy:.2%} (95 % interval {low:.2%} to {high:.2%})"

    def describe_doubt(self) -> str:
        """A sentence where these pictures do not show that the model is better than guessing; empty where they do.

        Told by kappa and AUROC, which guessing does not raise: both intervals reach what it gets, 0 and 0.5.
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
            f"{name:<17} {_format_percent(share)}{_format_percent_interval(span)}"
            for name, (share, span) in shares.items()
            if span
        ]
        lines[0] = lines[0].removesuffix(")") + f", {n})"
        for name, (number, span) in numbers.items():
            lines += [] if number is None else [f"{name:<17} {number:6.4f}{_format_number_interval(span)}"]
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
    """Every figure of one table of predictions; pictures without a target are left out.

    Args:
        groups: of each picture, such as its patient.
        ordered: whether the classes stand in an order, such as grades.
        seed, samples: of the bootstrap.

    Raises:
        DataError: no picture has a target, or an answer is no number.

    Source: definitions as in scikit-learn.
    """
    targets, probabilities, answers, groups = _select_known(predictions, groups)
    K, top = len(predictions.classes), _top_k(len(predictions.classes))
    table = _per_image_table(targets, answers, probabilities, top)
    values = _compute_statistics(table, K, ordered)
    spans = bootstrap_intervals(table, lambda rows: _compute_statistics(rows, K, ordered), seed, samples, groups=groups)
    spans = _replace_with_wilson(spans, values, table, K, groups)
    ranks = [_auc_or_none(targets == k, probabilities[:, k], groups) for k in range(K)]
    ranked = [one for one in ranks if one is not None]
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
        **(auc_fields(auc.mean_roc_auc(ranked)) if ranked else {}),
        calibration_error=debiased_calibration_error(confidences, hits),
        plain_calibration_error=expected_calibration_error(confidences, hits),
        confusion=tuple(tuple(row) for row in _confusion_matrix(table, K).tolist()),
        per_class=_compute_per_class(predictions.classes, _confusion_matrix(table, K), values, spans, ranks),
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
"""The first figures of `_figures`; recall, precision and F1 of every class follow."""
PER_CLASS_NAMES = ("recall", "precision", "f1")


def _select_known(
    predictions: ClassificationPredictions, groups: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    known = np.zeros(len(predictions), bool) if predictions.targets is None else predictions.targets != UNKNOWN_CLASS
    if predictions.targets is None or not known.any():
        raise DataError(
            f"Metrics need at least one picture with a known class. Got "
            f"{format_count(len(predictions), 'picture')}, none "
            "with a target; `vitrail predict` answers pictures without one."
        )
    probabilities = predictions.probabilities[known].astype(np.float64)
    require_finite(probabilities)
    groups = None if groups is None else groups[known]
    return predictions.targets[known].astype(np.int64), probabilities, predictions.labels[known], groups


def _top_k(K: int) -> int | None:
    """How many answers count as one; None where that says nothing."""
    return None if K < 3 else 2 if K <= 10 else 5


def _per_image_table(
    targets: np.ndarray, predictions: np.ndarray, probabilities: np.ndarray, top: int | None
) -> np.ndarray:
    """Of each picture its place in the confusion matrix, hit in the first few, loss, and squared distance: [n, 4]."""
    K, right = probabilities.shape[1], probabilities[np.arange(len(targets)), targets]
    columns = [
        targets * K + predictions,
        np.full(len(targets), np.nan) if top is None else (probabilities > right[:, None]).sum(1) < top,
        0.0 - np.log(np.maximum(right, np.finfo(np.float32).tiny)),
        np.square(probabilities - np.eye(K)[targets]).sum(1) / (2 if K == 2 else 1),
    ]
    return np.stack(columns, axis=1)


def _compute_statistics(table: np.ndarray, K: int, ordered: bool) -> np.ndarray:
    """Every figure that the bootstrap draws, [8 + 3 K]; NaN for one that these rows have nothing to say about."""
    confusion = _confusion_matrix(table, K)
    right, are, said = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        recall, precision, f1 = right / are, right / said, 2 * right / (are + said)
    means = table[:, 1:].mean(0)
    whole = [
        right.sum() / len(table), np.nanmean(recall), np.nanmean(f1), _weighted_kappa(confusion, 0),
        _weighted_kappa(confusion, 2) if ordered else np.nan, *means,
    ]  # fmt: skip
    return np.concatenate([whole, recall, precision, f1])


def _confusion_matrix(table: np.ndarray, K: int) -> np.ndarray:
    return np.bincount(table[:, 0].astype(np.int64), minlength=K * K).reshape(K, K)


def _weighted_kappa(confusion: np.ndarray, power: int) -> float:
    """1 - disagreement / that of chance, each confusion weighing its distance to this power; NaN without any."""
    n, are, said = confusion.sum(), confusion.sum(1), confusion.sum(0)
    if not power:
        met = float((are * said).sum()) / n
        return 1 - float(n - confusion.diagonal().sum()) / (n - met) if n > met else float("nan")
    places = np.arange(len(confusion))
    weights = np.abs(places[:, None] - places).astype(np.float64) ** power
    expected = float((weights * np.outer(are, said)).sum()) / n
    return 1 - float((weights * confusion).sum()) / expected if expected else float("nan")


def _replace_with_wilson(
    spans: list[Interval | None], values: np.ndarray, table: np.ndarray, K: int, groups: np.ndarray | None
) -> list[Interval | None]:
    """The same intervals with Wilson's for shares of pictures, or of groups where no sample can show another share."""
    confusion = _confusion_matrix(table, K)
    rows = {"accuracy": table[:, 0] // K == table[:, 0] % K, "top_accuracy": table[:, 1] == 1}
    shares = {
        OVERALL_NAMES.index(name): (right, groups)
        for name, right in rows.items()
        if not np.isnan(values[OVERALL_NAMES.index(name)])
    }
    for k in range(K):
        of_class, answered = table[:, 0] // K == k, table[:, 0] % K == k
        shares[len(OVERALL_NAMES) + k] = answered[of_class], None if groups is None else groups[of_class]
        shares[len(OVERALL_NAMES) + K + k] = of_class[answered], None if groups is None else groups[answered]
    found = list(spans)
    for place, (right, own) in shares.items():
        found[place] = proportion_interval(right, own, spans[place])
    if confusion.trace() == len(table):  # no error, and so no sample with another figure either
        low = found[0].low if found[0] is not None else 0.0
        for name in ("balanced_accuracy", "macro_f1", "kappa", "quadratic_kappa"):
            found[OVERALL_NAMES.index(name)] = Interval(low, 1.0)
    return found


def _auc_or_none(positive: np.ndarray, scores: np.ndarray, groups: np.ndarray | None) -> RocAuc | None:
    return auc.roc_auc_with_influence(positive, scores, groups=groups) if 0 < positive.sum() < len(positive) else None


def _compute_per_class(
    names: tuple[str, ...],
    confusion: np.ndarray,
    values: np.ndarray,
    spans: list[Interval | None],
    ranks: list[RocAuc | None],
) -> tuple[PerClassMetrics, ...]:
    found = []
    for k, (name, rank) in enumerate(zip(names, ranks, strict=True)):
        figures: dict[str, Any] = {}
        for number, kind in enumerate(PER_CLASS_NAMES):
            place = len(OVERALL_NAMES) + number * len(names) + k
            figures |= metric_fields(kind, values[place], spans[place])
        figures |= {} if rank is None else auc_fields(rank)
        found.append(
            PerClassMetrics(name=name, n=int(confusion[k].sum()), predicted=int(confusion[:, k].sum()), **figures)
        )
    return tuple(found)


def _format_percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


def _format_percent_interval(interval: Span) -> str:
    return f"  (95 % interval {100 * interval[0]:.2f} to {100 * interval[1]:.2f} %)"


def _format_number_interval(interval: Span | None) -> str:
    return "" if interval is None else f"  (95 % interval {interval[0]:.4f} to {interval[1]:.4f})"


# A figure with its interval as the two fields that every table of figures keeps it in.


def metric_fields(name: str, value: float, span: Interval | None) -> dict[str, Any]:
    """`name` and `name_interval`; nothing where the figure could not be measured."""
    return {name: float(value), f"{name}_interval": span} if np.isfinite(value) else {}


def proportion_interval(right: np.ndarray, groups: np.ndarray | None, samples: Interval | None) -> Interval | None:
    """The interval of a share of pictures: Wilson's, or by groups that of the drawn samples.

    Samples of a share of 0 or 1 are all alike, so there the groups are counted as if each were one picture.
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
    """An area under the ROC curve in the same way."""
    return metric_fields("auroc", auc.value, auc.interval())


# Answers that are numbers, which everything measured rests on.


def require_finite(predictions: np.ndarray) -> None:
    """Refuse to measure answers that are no numbers.

    Raises:
        DataError: how many there are.
    """
    if bad := int(np.count_nonzero(~np.isfinite(predictions))):
        raise DataError(
            f"{bad:,} of {predictions.size:,} answers are NaN or infinite, so they cannot be measured. The model is "
            "damaged or has diverged; train it again with lower rates."
        )
