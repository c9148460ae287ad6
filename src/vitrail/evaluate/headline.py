"""The one figure of a task, of some of the pictures: accuracy, mean AUROC, or mean absolute error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Shaped

from ..errors import DataError
from ..plural import counted
from ..stats import areas
from ..stats.intervals import Interval, bootstrap, wilson
from .answers import Answers
from .finite import refuse_not_finite
from .label_metrics import FEWEST
from .label_predictions import THRESHOLD, LabelPredictions
from .number_predictions import NumberPredictions
from .predictions import UNKNOWN, Predictions

ACCURACY = "accuracy"


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
    Errors of several columns are counted in deviations of each column's targets over all pictures, and averaged;
    columns whose targets are all equal count for nothing.

    Args:
        rows: which pictures count; all unless said.
        groups: of each picture, such as its patient.
        labels: over which labels the mean AUROC goes; unless said, over those with ten known pictures of either kind.
    """
    return mean_headline([answers], rows, groups, labels, seed)


def mean_headline(
    tables: Sequence[Answers],
    rows: Bool[np.ndarray, " n"] | None = None,
    groups: Shaped[np.ndarray, " n"] | None = None,
    labels: Sequence[int] | None = None,
    seed: int = 0,
) -> Headline:
    """The mean of the headlines of several tables about the same pictures, as of disturbances; one table is its own.

    A picture, or group, is drawn with its answers in all tables, so that the interval knows how alike they are.

    Args:
        tables: of one task, the same pictures in the same order. The others are as in `headline`.
    """
    first = tables[0]
    if isinstance(first, LabelPredictions):
        return _of_labels(tables, first, _chosen(first, rows), groups, labels)
    name, values = per_picture(first)
    values = np.mean([per_picture(one)[1] for one in tables], axis=0)
    there = _chosen(first, rows) & ~np.isnan(values)
    own = None if groups is None else groups[there]
    n, count = int(there.sum()), int(there.sum()) if own is None else len(np.unique(own))
    if not n:
        return Headline(name=name, n=0, groups=0)
    wide = values[there]
    value = float(wide.mean())
    if own is None and len(tables) == 1 and isinstance(first, Predictions):
        return Headline(name=name, n=n, groups=count, value=value, interval=wilson(int(wide.sum()), n))
    interval = bootstrap(wide, lambda drawn: float(drawn.mean()), seed, groups=own) if count > 1 else None
    return Headline(name=name, n=n, groups=count, value=value, interval=interval)


def value_of(answers: Answers) -> float:
    """The value of that figure alone, of all pictures.

    Raises:
        DataError: an answer is no number, no picture is known, every label is rare, or all targets of every column are
            equal.
    """
    if isinstance(answers, LabelPredictions):
        return _value_of_labels(answers)
    refuse_not_finite(answers.values if isinstance(answers, NumberPredictions) else answers.probabilities)
    values = per_picture(answers)[1]
    if not np.isnan(values).all():
        return float(np.nanmean(values))
    if isinstance(answers, NumberPredictions) and answers.known.any():
        raise DataError(
            f"Errors of several columns are compared by the deviation of their targets. All targets of each of the "
            f"{int(answers.known.any(0).sum())} known columns are equal among {len(answers):,} pictures; give more."
        )
    raise _unknown(len(answers), "number" if isinstance(answers, NumberPredictions) else "class")


def _value_of_labels(answers: LabelPredictions) -> float:
    refuse_not_finite(answers.probabilities)
    known = _known(answers)
    if not known.any():
        raise _unknown(len(answers), "label")
    counted = _counted(known, _present(answers))
    if not counted:
        raise DataError(
            f"An AUROC needs a label with {FEWEST} known pictures that have it and {FEWEST} that do not. None of the "
            f"{len(answers.classes)} labels has them among {len(answers):,} pictures; give more."
        )
    return areas.mean(_areas(answers, known, counted, None)).value


def _unknown(n: int, what: str) -> DataError:
    return DataError(f"A figure needs pictures with a known {what}. Got {counted(n, 'picture')}, none with one.")


def per_picture(answers: Answers) -> tuple[str, Float64[np.ndarray, " n"]]:
    """What a figure is called that is a mean over pictures, and each picture's part in it; NaN where it is not known.

    Classes have 1 for a right answer and 0 for a wrong one, numbers their absolute error.
    """
    if isinstance(answers, NumberPredictions):
        return _errors(answers, answers.values.astype(np.float64))
    assert not isinstance(answers, LabelPredictions)
    if answers.targets is None:
        return ACCURACY, np.full(len(answers), np.nan)
    right = (answers.labels == answers.targets).astype(np.float64)
    return ACCURACY, np.where(answers.targets == UNKNOWN, np.nan, right)


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
    spreads = np.array([column[~np.isnan(column)].std() if not np.isnan(column).all() else 0.0 for column in targets.T])
    counted = ~np.isnan(errors) & (spreads > 0)
    scaled = np.where(counted, errors / np.where(spreads > 0, spreads, 1.0), 0.0).sum(1)
    means = np.where(counted.any(1), scaled / np.maximum(counted.sum(1), 1), np.nan)
    return "mean absolute error in deviations", means


def _targets(answers: NumberPredictions) -> np.ndarray:
    return np.full(answers.values.shape, np.nan) if answers.targets is None else answers.targets.astype(np.float64)


def _chosen(answers: Answers, rows: np.ndarray | None) -> np.ndarray:
    return np.ones(len(answers), bool) if rows is None else rows


def _of_labels(
    tables: Sequence[Answers],
    first: LabelPredictions,
    rows: np.ndarray,
    groups: np.ndarray | None,
    labels: Sequence[int] | None,
) -> Headline:
    known = _known(first) & rows[:, None]
    counted = _counted(known, _present(first)) if labels is None else tuple(labels)
    seen = known.any(1)
    n = int(seen.sum())
    count = n if groups is None else len(np.unique(groups[seen]))
    name = "AUROC" if known.shape[1] == 1 else "mean AUROC"
    labelled = [one for one in tables if isinstance(one, LabelPredictions)]
    found = [one for table in labelled for one in _areas(table, known, counted, groups)]
    if not found:
        return Headline(name=name, n=n, groups=count)
    mean = areas.mean(found)
    return Headline(name=name, n=n, groups=count, value=mean.value, interval=mean.interval(), labels=counted)


def _known(answers: LabelPredictions) -> np.ndarray:
    return np.asarray(answers.known)


def _present(answers: LabelPredictions) -> np.ndarray:
    return np.zeros(answers.probabilities.shape, bool) if answers.targets is None else answers.targets >= THRESHOLD


def _counted(known: np.ndarray, present: np.ndarray) -> tuple[int, ...]:
    """The labels with ten known pictures of either kind."""
    fewest = np.minimum((known & present).sum(0), (known & ~present).sum(0))
    return tuple(np.flatnonzero(fewest >= FEWEST).tolist())


def _areas(
    answers: LabelPredictions, known: np.ndarray, labels: Sequence[int], groups: np.ndarray | None
) -> list[areas.Area]:
    present = known & _present(answers)
    return [areas.area(present[:, k], answers.probabilities[:, k], known[:, k], groups) for k in labels]
