"""What stored answers to the task `labels` are worth: ranking, precision and rates of each label, with intervals.

Labels that nobody knows are left out of every figure, and a label with few known positives or negatives out of the
means. Every figure can be recomputed from `predictions/test.csv` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import config
from ..errors import DataError
from ..plural import counted
from ..stats import areas
from ..stats.intervals import Interval, bootstraps
from .finite import refuse_not_finite
from .label_losses import label_losses
from .label_predictions import THRESHOLD, LabelPredictions
from .ranked import FIGURES, Ranked
from .told import of_area, of_share, told

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
class LabelMetrics:
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
    per_label: tuple[LabelFigures, ...]
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
        n = f"n = {self.n:,}" + ("" if self.groups is None else f" in {self.groups:,} groups")
        lines = [
            f"AUROC             {_four(self.auroc)}  ({_span(self.auroc_interval)}, {n})",
            f"average precision {_four(self.average_precision)}  ({_span(self.average_precision_interval)})",
            f"macro F1          {_four(self.f1)}  ({_span(self.f1_interval)})",
            f"log loss          {self.log_loss:6.4f}  ({_span(self.log_loss_interval)})",
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


def measure(
    predictions: LabelPredictions, groups: np.ndarray | None = None, seed: int = 0, samples: int = 1000
) -> LabelMetrics:
    """Every figure of one table; a target from 0.5 on counts as a picture with the label.

    Args:
        groups: of each picture, such as its patient.
        seed, samples: of the bootstrap.

    Raises:
        DataError: no label of any picture is known, or an answer is no number.

    Source: definitions as in scikit-learn.
    """
    known, rows = predictions.known, predictions.known.any(1)
    if predictions.targets is None or not rows.any():
        raise DataError(
            f"Metrics need at least one picture with a known label. Got {counted(len(predictions), 'picture')}, none "
            "with a target; `vitrail predict` answers pictures without one."
        )
    refuse_not_finite(predictions.probabilities[known])
    known, targets = known[rows], predictions.targets[rows].astype(np.float64)
    chances, answers = predictions.probabilities[rows].astype(np.float64), predictions.labels[rows]
    groups = None if groups is None else groups[rows]
    labels = [
        Ranked.of(known[:, k], targets[:, k] >= THRESHOLD, chances[:, k], answers[:, k])
        for k in range(len(predictions.classes))
    ]
    common = np.array([not _rare(one) for one in labels])
    losses = label_losses(predictions)[rows]
    sums = np.stack([losses.sum(1), known.sum(1)], axis=1)  # [n, 2]

    def drawn(rows: np.ndarray) -> np.ndarray:
        """[1 + 2 + labels * FIGURES]: log loss, two means, and every figure of every label."""
        counts = np.bincount(rows, minlength=len(sums))
        loss, n = counts @ sums
        each = np.array([one.figures(counts) for one in labels])  # [labels, FIGURES]
        means = each[common].mean(0) if common.any() else np.full(len(FIGURES), np.nan)
        return np.concatenate([[loss / n, *means[:MEANS]], each.ravel()])

    everything = np.arange(len(sums))
    values, spans = drawn(everything), bootstraps(everything, drawn, seed, samples, groups=groups)
    per_label = tuple(
        _of_label(name, labels[k], values[start:], spans[start:], groups)
        for k, name in enumerate(predictions.classes)
        for start in [1 + MEANS + k * len(FIGURES)]
    )
    whole: dict[str, Any] = {}
    for place, name in enumerate(("log_loss", *FIGURES[:MEANS])):
        whole |= told(name, values[place], spans[place])
    ranks = [one.area(groups) for one, mine in zip(labels, common, strict=True) if mine]
    return LabelMetrics(
        split=predictions.split,
        n=len(targets),
        groups=None if groups is None else len(np.unique(groups)),
        counted=int(common.sum()),
        per_label=per_label,
        **whole,
        **(of_area(areas.mean([rank for rank in ranks if rank is not None])) if ranks else {}),
    )


MEANS = 2
"""The first of `FIGURES` that are also given as means over labels: average precision and F1."""


def _rare(label: Ranked) -> bool:
    return min(label.positives, label.negatives) < FEWEST


def _of_label(
    name: str, label: Ranked, values: np.ndarray, spans: list[Interval | None], groups: np.ndarray | None
) -> LabelFigures:
    """One label over the pictures of which it is known; `values` and `spans` begin with its figures."""
    rare, rank = _rare(label), label.area(groups)
    figures: dict[str, Any] = {}
    for figure, value, span in zip(FIGURES, values, spans, strict=False):
        figures |= told(figure, value, None if rare else span)
    for figure, kind in (("sensitivity", label.positive), ("specificity", ~label.positive)):
        right = (label.answered == label.positive)[kind]
        own = None if groups is None else groups[label.rows][kind]
        figures |= {f"{figure}_interval": of_share(right, own, spans[FIGURES.index(figure)])}
    if rank is not None:
        figures |= {"auroc": rank.value} if rare else of_area(rank)
    n = label.positives + label.negatives
    return LabelFigures(
        name=name,
        n=n,
        positives=label.positives,
        rare=rare,
        prevalence=label.positives / n if n else None,
        calibration_error=label.calibration_error() if n else None,
        **figures,
    )


def _four(number: float | None) -> str:
    return "     -" if number is None else f"{number:6.4f}"


def _span(interval: Span | None) -> str:
    return "no label can be ranked" if interval is None else f"95 % interval {interval[0]:.4f} to {interval[1]:.4f}"
