"""One figure of a table of answers, for everything that is compared many times over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..data.source import Task
from ..errors import DataError
from ..stats.areas import area
from .answers import Answers
from .finite import refuse_not_finite
from .label_metrics import FEWEST
from .label_predictions import THRESHOLD, LabelPredictions
from .number_predictions import NumberPredictions
from .predictions import UNKNOWN, Predictions

ACCURACY, AUROC, MAE = "accuracy", "mean AUROC", "mean absolute error"
MAE_OF_SEVERAL = "mean absolute error in deviations of the targets"


@dataclass(frozen=True, kw_only=True)
class Yardstick:
    """The one figure that is followed."""

    name: str
    higher_is_better: bool
    of: Callable[[np.ndarray], float]
    """Of the outputs for all pictures, in their order."""


def yardstick_of(task: Task, outputs: int, answers: Callable[[np.ndarray], Answers]) -> Yardstick:
    """The figure that is followed for a task.

    Args:
        outputs: of the model, columns of a `number`.
        answers: makes the table of answers, with its targets, of the outputs for all pictures.
    """

    def of(found: np.ndarray) -> float:
        return worth(answers(found))

    name = {"classes": ACCURACY, "labels": AUROC, "number": MAE if outputs == 1 else MAE_OF_SEVERAL}[task]
    return Yardstick(name=name, higher_is_better=task != "number", of=of)


def worth(answers: Answers) -> float:
    """One figure of a table of answers: accuracy, mean AUROC of the labels that are not rare, or mean absolute error.

    Errors of several columns, whose units differ, are divided by the deviation of each column's targets.

    Raises:
        DataError: an answer is no number, or nothing can be measured.
    """
    if isinstance(answers, Predictions):
        return _accuracy(answers)
    return _auroc(answers) if isinstance(answers, LabelPredictions) else _absolute(answers)


def _accuracy(answers: Predictions) -> float:
    refuse_not_finite(answers.probabilities)
    known = np.zeros(len(answers), bool) if answers.targets is None else answers.targets != UNKNOWN
    if answers.targets is None or not known.any():
        raise _unknown(len(answers), "class")
    return float((answers.labels == answers.targets)[known].mean())


def _auroc(answers: LabelPredictions) -> float:
    refuse_not_finite(answers.probabilities)
    if answers.targets is None or not answers.known.any():
        raise _unknown(len(answers), "label")
    found = []
    for known, targets, chances in zip(answers.known.T, answers.targets.T, answers.probabilities.T, strict=True):
        present = targets >= THRESHOLD
        if min((known & present).sum(), (known & ~present).sum()) >= FEWEST:
            found.append(area(present, chances.astype(np.float64), known).value)
    if not found:
        raise DataError(
            f"An AUROC needs a label with {FEWEST} known pictures that have it and {FEWEST} that do not. None of the "
            f"{len(answers.classes)} labels has them among {len(answers):,} pictures; give more."
        )
    return float(np.mean(found))


def _absolute(answers: NumberPredictions) -> float:
    refuse_not_finite(answers.values)
    known = answers.known
    if answers.targets is None or not known.any():
        raise _unknown(len(answers), "number")
    gaps = np.abs(answers.values.astype(np.float64) - answers.targets)
    errors = [gaps[there, k].mean() for k, there in enumerate(known.T) if there.any()]
    if len(answers.columns) == 1:
        return float(errors[0])
    spreads = [answers.targets[there, k].astype(np.float64).std() for k, there in enumerate(known.T) if there.any()]
    shares = [error / spread for error, spread in zip(errors, spreads, strict=True) if spread]
    if not shares:
        raise DataError(
            f"Errors of several columns are compared by the deviation of their targets. All targets of each of the "
            f"{len(errors)} known columns are equal among {len(answers):,} pictures; give more."
        )
    return float(np.mean(shares))


def _unknown(n: int, what: str) -> DataError:
    return DataError(f"A figure needs pictures with a known {what}. Got {n:,} pictures, none of them with one.")
