"""The one figure of a task, of some of the pictures: accuracy, mean AUROC, or mean absolute error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from ..stats import areas
from ..stats.intervals import Interval, bootstrap, wilson
from .answers import Answers
from .label_metrics import FEWEST
from .label_predictions import THRESHOLD, LabelPredictions
from .number_predictions import NumberPredictions
from .predictions import UNKNOWN


@dataclass(frozen=True, kw_only=True)
class Headline:
    """A figure with its 95 % interval; both are None where nothing can be measured."""

    name: str
    n: int
    """Pictures that it is measured on."""
    groups: int
    """Groups that these come in; as many as pictures where there are no groups."""
    value: float | None = None
    interval: Interval | None = None
    labels: tuple[int, ...] = ()
    """Of the task labels those that the mean is over."""


def headline(
    answers: Answers,
    rows: Bool[np.ndarray, " n"] | None = None,
    groups: Shaped[np.ndarray, " n"] | None = None,
    labels: Sequence[int] | None = None,
    seed: int = 0,
) -> Headline:
    """Accuracy of classes, mean AUROC of labels, mean absolute error of numbers, of the pictures that are known.

    Shares have Wilson's interval, areas DeLong's, errors the bootstrap's; with groups shares have the bootstrap's too.
    Errors of several columns are counted in deviations of each column's targets over all pictures, and averaged.

    Args:
        rows: which pictures count; all unless said.
        groups: of each picture, such as its patient.
        labels: over which labels the mean AUROC goes; unless said, over those with ten known pictures of either kind.
    """
    if isinstance(answers, LabelPredictions):
        return _of_labels(answers, _chosen(answers, rows), groups, labels)
    name, values = per_picture(answers)
    there = _chosen(answers, rows) & ~np.isnan(values)
    own = None if groups is None else groups[there]
    n, count = int(there.sum()), int(there.sum()) if own is None else len(np.unique(own))
    if not n:
        return Headline(name=name, n=0, groups=0)
    value, wide = float(values[there].mean()), values[there]
    if own is None and not isinstance(answers, NumberPredictions):
        return Headline(name=name, n=n, groups=count, value=value, interval=wilson(int(wide.sum()), n))
    interval = bootstrap(wide, lambda drawn: float(drawn.mean()), seed, groups=own) if count > 1 else None
    return Headline(name=name, n=n, groups=count, value=value, interval=interval)


def per_picture(answers: Answers) -> tuple[str, Float64[np.ndarray, " n"]]:
    """What a figure is called that is a mean over pictures, and each picture's part in it; NaN where it is not known.

    Classes have 1 for a right answer and 0 for a wrong one, numbers their absolute error.
    """
    if isinstance(answers, NumberPredictions):
        return _errors(answers, answers.values.astype(np.float64))
    assert not isinstance(answers, LabelPredictions)
    if answers.targets is None:
        return "accuracy", np.full(len(answers), np.nan)
    right = (answers.labels == answers.targets).astype(np.float64)
    return "accuracy", np.where(answers.targets == UNKNOWN, np.nan, right)


def constant(answers: NumberPredictions) -> Float64[np.ndarray, " n"]:
    """As `per_picture`, of always saying the mean of the targets."""
    targets = _targets(answers)
    means = [column[~np.isnan(column)].mean() if not np.isnan(column).all() else np.nan for column in targets.T]
    return _errors(answers, np.broadcast_to(np.array(means), targets.shape))[1]


def _errors(answers: NumberPredictions, values: np.ndarray) -> tuple[str, np.ndarray]:
    targets = _targets(answers)
    errors = np.abs(values - targets)
    if errors.shape[1] == 1:
        return f"mean absolute error of {answers.columns[0]}", errors[:, 0]
    known = ~np.isnan(errors)
    spreads = [column[~np.isnan(column)].std() if not np.isnan(column).all() else 0.0 for column in targets.T]
    scaled = np.where(known, errors / [spread or 1.0 for spread in spreads], 0.0).sum(1)
    return "mean absolute error in deviations", np.where(known.any(1), scaled / np.maximum(known.sum(1), 1), np.nan)


def _targets(answers: NumberPredictions) -> np.ndarray:
    return np.full(answers.values.shape, np.nan) if answers.targets is None else answers.targets.astype(np.float64)


def _chosen(answers: Answers, rows: np.ndarray | None) -> np.ndarray:
    return np.ones(len(answers), bool) if rows is None else rows


def _of_labels(
    answers: LabelPredictions, rows: np.ndarray, groups: np.ndarray | None, labels: Sequence[int] | None
) -> Headline:
    known = answers.known & rows[:, None]
    present = known & (np.zeros(known.shape, bool) if answers.targets is None else answers.targets >= THRESHOLD)
    fewest = np.minimum(present.sum(0), (known & ~present).sum(0))
    counted = tuple(np.flatnonzero(fewest >= FEWEST).tolist() if labels is None else labels)
    seen = known.any(1)
    n = int(seen.sum())
    count = n if groups is None else len(np.unique(groups[seen]))
    name = "AUROC" if known.shape[1] == 1 else "mean AUROC"
    found = [areas.area(present[:, k], answers.probabilities[:, k], known[:, k], groups) for k in counted]
    if not found:
        return Headline(name=name, n=n, groups=count)
    mean = areas.mean(found)
    return Headline(name=name, n=n, groups=count, value=mean.value, interval=mean.interval(), labels=counted)
