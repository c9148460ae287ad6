"""What stored predictions are worth: accuracy, balance, ranking and calibration, with intervals.

Every figure here can be recomputed from `predictions/test.csv` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import config
from ..errors import DataError
from ..stats.intervals import bootstrap, wilson
from .predictions import UNKNOWN, Predictions

BINS = 15
"""Equal-width bins of the calibration error, as in Guo et al. 2017."""


@dataclass(frozen=True, kw_only=True)
class ClassMetrics:
    """One class against all others. None where the split has nothing to measure it on."""

    name: str
    n: int
    """Pictures of this class."""
    predicted: int
    """Pictures said to be of this class."""
    precision: float | None = None
    """Share of those said to be of it that are."""
    recall: float | None = None
    """Share of its pictures that were found."""
    recall_interval: tuple[float, float] | None = None
    """95 % Wilson interval of recall."""
    f1: float | None = None
    """Harmonic mean of precision and recall."""
    auroc: float | None = None
    """Chance that a picture of it scores above a picture of another class."""


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """All figures of one split; intervals are 95 %."""

    split: str
    n: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    """Wilson."""
    balanced_accuracy: float
    """Mean recall over the classes that occur."""
    balanced_accuracy_interval: tuple[float, float]
    """Percentile bootstrap over pictures."""
    macro_f1: float
    """Mean F1 over the classes that occur or were answered."""
    macro_f1_interval: tuple[float, float]
    log_loss: float
    """Mean of -log(probability of the right class), in nats."""
    log_loss_interval: tuple[float, float]
    calibration_error: float
    """Mean distance between confidence and accuracy over 15 equal-width bins (ECE)."""
    confusion: tuple[tuple[int, ...], ...]
    """Pictures [target][answer]."""
    per_class: tuple[ClassMetrics, ...]
    auroc: float | None = None
    """Mean over classes, one against the rest."""

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers, as they stand in report.json; what could not be measured is absent."""
        return config.write(self)

    def headline(self) -> str:
        """The figure a person asks for first, in a sentence without its full stop."""
        low, high = self.accuracy_interval
        where = f"on {self.n:,} held-out pictures ({self.split})"
        return f"Accuracy {where}: {self.accuracy:.2%} (95 % interval {low:.2%} to {high:.2%})"

    def table(self) -> str:
        """The headline and one line per class, for the terminal."""
        width = max(5, *(len(c.name) for c in self.per_class))
        lines = [
            f"accuracy          {_percent(self.accuracy)}  ({_span(self.accuracy_interval)}, n = {self.n:,})",
            f"balanced accuracy {_percent(self.balanced_accuracy)}  ({_span(self.balanced_accuracy_interval)})",
            f"macro F1          {_percent(self.macro_f1)}  ({_span(self.macro_f1_interval)})",
            f"log loss          {self.log_loss:6.4f}",
            f"calibration error {self.calibration_error:6.4f}",
            f"AUROC             {'-' if self.auroc is None else format(self.auroc, '6.4f')}",
            "",
            f"{'class':<{width}}  {'n':>6}  precision  {'recall':>7}  {'F1':>7}   AUROC",
        ]
        for c in self.per_class:
            auroc = "     -" if c.auroc is None else f"{c.auroc:6.4f}"
            lines.append(
                f"{c.name:<{width}}  {c.n:>6}  {_percent(c.precision):>9}  {_percent(c.recall):>7}  "
                f"{_percent(c.f1):>7}  {auroc}"
            )
        return "\n".join(lines)


def measure(predictions: Predictions, seed: int = 0, samples: int = 1000) -> Metrics:
    """Every figure of one table of predictions; pictures without a target are left out.

    Args:
        seed, samples: of the bootstrap intervals.

    Raises:
        DataError: no picture has a target.

    Source: definitions as in scikit-learn; calibration error of Naeini et al. 2015 and Guo et al. 2017.
    """
    targets, probabilities = _known(predictions)
    K = len(predictions.classes)
    answers = probabilities.argmax(1)
    cells = targets * K + answers  # [n], each picture's place in the confusion matrix; what the bootstrap draws
    losses = -np.log(np.maximum(probabilities[np.arange(len(targets)), targets], np.finfo(np.float32).tiny))
    confusion = _confusion(cells, K)
    areas = [_area(targets == k, probabilities[:, k]) for k in range(K)]
    hits = int((targets == answers).sum())
    return Metrics(
        split=predictions.split,
        n=len(targets),
        accuracy=hits / len(targets),
        accuracy_interval=wilson(hits, len(targets)),
        balanced_accuracy=_balanced(confusion),
        balanced_accuracy_interval=bootstrap(cells, lambda c: _balanced(_confusion(c, K)), seed, samples),
        macro_f1=_macro_f1(confusion),
        macro_f1_interval=bootstrap(cells, lambda c: _macro_f1(_confusion(c, K)), seed, samples),
        log_loss=float(losses.mean()),
        log_loss_interval=bootstrap(losses, lambda v: float(v.mean()), seed, samples),
        calibration_error=calibration_error(probabilities.max(1), targets == answers),
        auroc=_mean(areas),
        confusion=tuple(tuple(row) for row in confusion.tolist()),
        per_class=tuple(_of_class(name, k, confusion, areas[k]) for k, name in enumerate(predictions.classes)),
    )


def calibration_error(confidences: np.ndarray, hits: np.ndarray, bins: int = BINS) -> float:
    """Mean |accuracy - confidence| over equal-width bins of confidence, weighted by pictures (ECE).

    A bin holds its upper edge, not its lower one. Source: Guo et al. 2017, equation 3.
    """
    places = np.clip(np.ceil(confidences.astype(np.float64) * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(places, hits - confidences.astype(np.float64), minlength=bins)  # count * (accuracy - confidence)
    return float(np.abs(gaps).sum() / len(hits))


def _known(predictions: Predictions) -> tuple[np.ndarray, np.ndarray]:
    known = np.zeros(len(predictions), bool) if predictions.targets is None else predictions.targets != UNKNOWN
    if predictions.targets is None or not known.any():
        raise DataError(
            f"Metrics need at least one picture with a known class. Got {len(predictions)} pictures, none with a "
            "target; `vitrail predict` answers pictures without one."
        )
    return predictions.targets[known].astype(np.int64), predictions.probabilities[known].astype(np.float64)


def _confusion(cells: np.ndarray, K: int) -> np.ndarray:
    return np.bincount(cells, minlength=K * K).reshape(K, K)


def _balanced(confusion: np.ndarray) -> float:
    right, are = confusion.diagonal(), confusion.sum(1)
    return float((right[are > 0] / are[are > 0]).mean())


def _macro_f1(confusion: np.ndarray) -> float:
    right, both = confusion.diagonal(), confusion.sum(1) + confusion.sum(0)
    return float((2 * right[both > 0] / both[both > 0]).mean())


def _area(positive: np.ndarray, scores: np.ndarray) -> float | None:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(positive, scores)) if 0 < positive.sum() < len(positive) else None


def _of_class(name: str, k: int, confusion: np.ndarray, area: float | None) -> ClassMetrics:
    right, n, predicted = int(confusion[k, k]), int(confusion[k].sum()), int(confusion[:, k].sum())
    return ClassMetrics(
        name=name,
        n=n,
        predicted=predicted,
        precision=right / predicted if predicted else None,
        recall=right / n if n else None,
        recall_interval=wilson(right, n) if n else None,
        f1=2 * right / (n + predicted) if n + predicted else None,
        auroc=area,
    )


def _mean(numbers: list[float | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if known else None


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f} %"


def _span(interval: tuple[float, float]) -> str:
    return f"95 % interval {100 * interval[0]:.2f} to {100 * interval[1]:.2f} %"
