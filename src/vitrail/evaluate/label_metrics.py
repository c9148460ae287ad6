"""What stored answers to the task `labels` are worth: ranking, precision and rates of each label, with intervals.

Labels that nobody knows are left out of every figure, and a label with few known positives or negatives out of the
means. Every figure can be recomputed from `predictions/test.csv` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import config
from ..errors import DataError
from ..stats.intervals import bootstrap, wilson
from .label_predictions import THRESHOLD, LabelPredictions

FEWEST = 10
"""Known positives, and known negatives, that a label needs for a ranking that can be told from luck."""

Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class LabelFigures:
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
    """Percentile bootstrap over its known pictures."""
    average_precision: float | None = None
    """Area under precision by recall."""
    f1: float | None = None
    """Harmonic mean of precision and sensitivity, answering from 0.5 on."""
    sensitivity: float | None = None
    """Share of the pictures with it that are answered so, from 0.5 on."""
    sensitivity_interval: Span | None = None
    """Wilson."""
    specificity: float | None = None
    """Share of the pictures without it that are answered so, below 0.5."""
    specificity_interval: Span | None = None
    """Wilson."""


@dataclass(frozen=True, kw_only=True)
class LabelMetrics:
    """All figures of one split; intervals are 95 %, means are over the labels that are not rare."""

    split: str
    n: int
    """Pictures of which at least one label is known."""
    counted: int
    """Labels that the means are over."""
    log_loss: float
    """Mean binary cross-entropy over all known labels of all pictures, in nats."""
    log_loss_interval: Span
    """Percentile bootstrap over pictures."""
    per_label: tuple[LabelFigures, ...]
    auroc: float | None = None
    auroc_interval: Span | None = None
    """Percentile bootstrap over pictures."""
    average_precision: float | None = None
    f1: float | None = None

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
            return f"Log loss {where}: {self.log_loss:.4f}; {self.left_out()}"
        low, high = self.auroc_interval
        mean = f"mean of {self.counted} labels, " if len(self.per_label) > 1 else ""
        rest = f"; {self.left_out()}" if self.rare else ""
        return f"AUROC {where}: {self.auroc:.4f} ({mean}95 % interval {low:.4f} to {high:.4f}){rest}"

    def left_out(self) -> str:
        """Which labels the means leave out and why; empty if none."""
        if not self.rare:
            return ""
        names = ", ".join(self.rare[:5]) + (f" and {len(self.rare) - 5} more" if len(self.rare) > 5 else "")
        return f"fewer than {FEWEST} known pictures with or without it, so not in the mean: {names}"

    def table(self) -> str:
        """The headline and one line per label, for the terminal."""
        width = max(5, *(len(one.name) for one in self.per_label))
        heads = f"{'label':<{width}}  {'known':>6}  {'with it':>7}  {'AUROC':>6}  {'95 % interval':>16}"
        lines = [
            f"AUROC             {_four(self.auroc)}  ({_span(self.auroc_interval)}, n = {self.n:,})",
            f"average precision {_four(self.average_precision)}",
            f"macro F1          {_four(self.f1)}",
            f"log loss          {self.log_loss:6.4f}",
            "",
            f"{heads}  precision  {'F1':>6}  sensitivity  specificity",
        ]
        for one in self.per_label:
            low_high = "-" if one.auroc_interval is None else "{:.4f} to {:.4f}".format(*one.auroc_interval)
            lines.append(
                f"{one.name:<{width}}  {one.n:>6}  {one.positives:>7}  {_four(one.auroc)}  {low_high:>16}  "
                f"{_four(one.average_precision):>9}  {_four(one.f1)}  {_four(one.sensitivity):>11}  "
                f"{_four(one.specificity):>11}"
            )
        return "\n".join([*lines, *([f"({self.left_out()})"] if self.rare else [])])


def measure(predictions: LabelPredictions, seed: int = 0, samples: int = 1000) -> LabelMetrics:
    """Every figure of one table; a target from 0.5 on counts as a picture with the label.

    Args:
        seed, samples: of the bootstrap intervals.

    Raises:
        DataError: no label of any picture is known.

    Source: definitions as in scikit-learn.
    """
    known, rows = predictions.known, predictions.known.any(1)
    if predictions.targets is None or not rows.any():
        raise DataError(
            f"Metrics need at least one picture with a known label. Got {len(predictions)} pictures, none with a "
            "target; `vitrail predict` answers pictures without one."
        )
    refuse_not_finite(predictions.probabilities[known])
    known, targets = known[rows], predictions.targets[rows].astype(np.float64)
    chances = predictions.probabilities[rows].astype(np.float64)
    positive = targets >= THRESHOLD
    columns = [(known[:, k], positive[:, k], chances[:, k]) for k in range(len(predictions.classes))]
    per_label = tuple(
        _of_label(name, positive[there], chances[there], seed, samples)
        for name, (there, positive, chances) in zip(predictions.classes, columns, strict=True)
    )
    counted = [column for column, one in zip(columns, per_label, strict=True) if not one.rare]
    losses = _losses(np.where(known, targets, 0), chances) * known
    sums = np.stack([losses.sum(1), known.sum(1)], axis=1)  # [n, 2]
    return LabelMetrics(
        split=predictions.split,
        n=len(targets),
        counted=len(counted),
        log_loss=float(sums[:, 0].sum() / sums[:, 1].sum()),
        log_loss_interval=bootstrap(sums, lambda s: float(s[:, 0].sum() / s[:, 1].sum()), seed, samples),
        per_label=per_label,
        auroc=_mean([one.auroc for one in per_label if not one.rare]),
        auroc_interval=bootstrap(np.arange(len(targets)), _mean_area(counted), seed, samples) if counted else None,
        average_precision=_mean([one.average_precision for one in per_label if not one.rare]),
        f1=_mean([one.f1 for one in per_label if not one.rare]),
    )


def refuse_not_finite(answers: np.ndarray) -> None:
    """Refuse to measure answers that are no numbers.

    Raises:
        DataError: how many there are.
    """
    if bad := int(np.count_nonzero(~np.isfinite(answers))):
        raise DataError(
            f"{bad:,} of {answers.size:,} answers are NaN or infinite, so they cannot be measured. The model is "
            "damaged or has diverged; train it again with lower rates."
        )


def area(positive: np.ndarray, scores: np.ndarray) -> float | None:
    """The area under the ROC curve, scikit-learn's; None where all pictures are of one kind."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(positive, scores)) if 0 < positive.sum() < len(positive) else None


def _of_label(name: str, positive: np.ndarray, chances: np.ndarray, seed: int, samples: int) -> LabelFigures:
    """One label over the pictures of which it is known."""
    from sklearn.metrics import average_precision_score

    answered = chances >= THRESHOLD
    n, with_it = len(positive), int(positive.sum())
    found, refused = int((answered & positive).sum()), int((~answered & ~positive).sum())
    rare = min(with_it, n - with_it) < FEWEST
    interval = None
    if not rare:
        interval = bootstrap(np.arange(n), _mean_area([(np.ones(n, bool), positive, chances)]), seed, samples)
    return LabelFigures(
        name=name,
        n=n,
        positives=with_it,
        rare=rare,
        prevalence=with_it / n if n else None,
        auroc=area(positive, chances),
        auroc_interval=interval,
        average_precision=float(average_precision_score(positive, chances)) if with_it else None,
        f1=2 * found / (with_it + int(answered.sum())) if with_it + answered.sum() else None,
        sensitivity=found / with_it if with_it else None,
        sensitivity_interval=wilson(found, with_it) if with_it else None,
        specificity=refused / (n - with_it) if n > with_it else None,
        specificity_interval=wilson(refused, n - with_it) if n > with_it else None,
    )


def _mean_area(columns: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Callable[[np.ndarray], float]:
    """Mean area under the ROC curve over labels, as a function of drawn rows; sorted once, so that drawing is cheap.

    Args:
        columns: of each label, which rows are known, which have it, and their scores.
    """
    prepared = []
    for known, positive, scores in columns:
        rows = np.flatnonzero(known)
        order = rows[np.argsort(scores[rows], kind="stable")]
        groups = np.cumsum(np.diff(scores[order], prepend=scores[order[:1]]) > 0)  # equal scores share one
        prepared.append((order, positive[order], groups))
    n = len(columns[0][0])

    def mean_area(drawn: np.ndarray) -> float:
        counts = np.bincount(drawn, minlength=n)
        return float(np.mean([_weighted(counts[order], with_it, groups) for order, with_it, groups in prepared]))

    return mean_area


def _weighted(counts: np.ndarray, positive: np.ndarray, groups: np.ndarray) -> float:
    """The area where each picture, in the order of scores, is there `counts` times; NaN if all are of one kind."""
    ups = np.bincount(groups, counts * positive)
    downs = np.bincount(groups, counts * ~positive)
    pairs = ups.sum() * downs.sum()
    below = np.cumsum(downs) - downs / 2  # half of those with the same score
    return float((ups * below).sum() / pairs) if pairs else float("nan")


def _losses(targets: np.ndarray, chances: np.ndarray) -> np.ndarray:
    least = np.finfo(np.float32).tiny
    return -(targets * np.log(np.maximum(chances, least)) + (1 - targets) * np.log(np.maximum(1 - chances, least)))


def _mean(numbers: list[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if known else None


def _four(number: float | None) -> str:
    return "     -" if number is None else f"{number:6.4f}"


def _span(interval: Span | None) -> str:
    return "no label can be ranked" if interval is None else f"95 % interval {interval[0]:.4f} to {interval[1]:.4f}"
