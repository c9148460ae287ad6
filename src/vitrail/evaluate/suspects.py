"""Which labels may be wrong: those that answers out of fold contradict most.

An answer is out of fold when whoever gave it had not been shown the picture: by the probes of `out_of_fold`, or by
models of which each was trained without one fold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64, Shaped

from ..data.source import Task
from .label_predictions import THRESHOLD

CLEAR = 0.6
"""The score from which on a class or label is flagged: another one has at least 20 points of probability more.

Between two classes that a model cannot tell apart confident learning flags half of all pictures: of 630 that it flagged
for such a model 29 % were wrong; of the 157 from this score on all were, and these are 79 % of the wrong ones."""
FAR = 3.5
"""Robust deviations from which on a number is flagged (Iglewicz and Hoaglin 1993)."""
NORMAL = 1.4826
"""Standard deviations in a median absolute deviation, of normal numbers."""


@dataclass(frozen=True, eq=False)
class Suspects:
    """Every known cell that was answered, the most suspect first; a cell is a picture, or one label of a picture."""

    rows: Int64[np.ndarray, " m"]
    """Places of the pictures in what was given."""
    outputs: Int64[np.ndarray, " m"]
    """Of labels and numbers the column; 0 for classes."""
    given: Float64[np.ndarray, " m"]
    """What the cell says: a class number, 1 or 0 for with and without the label, or a number."""
    suggested: Float64[np.ndarray, " m"]
    """What the answers say instead."""
    scores: Float64[np.ndarray, " m"]
    """Of classes and labels 0..1, above one half where the suggestion is likelier; of numbers robust deviations."""
    flagged: Bool[np.ndarray, " m"]
    """Which cells are likely to be wrong."""
    chances: Float64[np.ndarray, "m 2"]
    """Probability of what is given and of what is suggested; NaN for numbers."""

    def __len__(self) -> int:
        return len(self.rows)


def suspects(task: Task, answers: Float[np.ndarray, "n K"], targets: Shaped[np.ndarray, " n *K"]) -> Suspects:
    """The suspects of any task.

    Args:
        answers: out of fold: probabilities, or numbers in the unit of the targets; NaN where there is none.
        targets: class numbers [n], below 0 where unknown; labels 0..1 and numbers [n, K], NaN where unknown.
    """
    if task == "classes":
        return of_classes(answers, targets.astype(np.int64))
    return of_labels(answers, targets) if task == "labels" else of_numbers(answers, targets)


def of_classes(probabilities: Float[np.ndarray, "n K"], targets: Int64[np.ndarray, " n"]) -> Suspects:
    """Confident learning: a class counts as confident from the mean probability on that its own pictures get.

    A picture is flagged whose likeliest confident class is another than the given one, if its score is clear. The score
    is half of one less the margin, the probability of the given class less that of the likeliest other one.

    Source: Northcutt, Jiang and Chuang 2021, "Confident learning: estimating uncertainty in dataset labels",
    sections 3.1 and 3.3; that the score must be clear is ours.
    """
    rows = np.flatnonzero((targets >= 0) & ~np.isnan(probabilities).any(1))
    chances, given, every = probabilities[rows].astype(np.float64), targets[rows], np.arange(len(rows))
    own = chances[every, given]
    sums, counts = (np.bincount(given, weights, chances.shape[1]) for weights in (own, None))
    thresholds = np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)  # of a class nobody has, none is confident
    confident = np.where(chances >= thresholds, chances, -1.0)
    told = confident.argmax(1) if len(rows) else given
    others = chances.copy()
    others[every, given] = -1.0
    likeliest = others.argmax(1) if len(rows) else given
    scores = (1 - own + chances[every, likeliest]) / 2
    flagged = (confident.max(1, initial=-1.0) >= 0) & (told != given) & (scores >= CLEAR)
    suggested = np.where(flagged, told, likeliest)
    return _ordered(
        rows, np.zeros_like(rows), given, suggested, scores, flagged,
        np.stack([own, chances[every, suggested]], axis=1),
    )  # fmt: skip


def of_labels(probabilities: Float[np.ndarray, "n K"], targets: Float[np.ndarray, "n K"]) -> Suspects:
    """The same of every label by itself, whose two classes are with and without it; all cells in one order."""
    found = []
    for k in range(targets.shape[1]):
        present = np.where(np.isnan(targets[:, k]), -1, targets[:, k] >= THRESHOLD).astype(np.int64)
        both = np.stack([1 - probabilities[:, k], probabilities[:, k]], axis=1)
        found.append(of_classes(both, present))
    columns = np.repeat(np.arange(len(found)), [len(one) for one in found])
    return _ordered(
        np.concatenate([one.rows for one in found]),
        columns,
        np.concatenate([one.given for one in found]),
        np.concatenate([one.suggested for one in found]),
        np.concatenate([one.scores for one in found]),
        np.concatenate([one.flagged for one in found]),
        np.concatenate([one.chances for one in found]),
    )


def of_numbers(values: Float[np.ndarray, "n K"], targets: Float[np.ndarray, "n K"]) -> Suspects:
    """Each number by how far its error lies from the median error of its column, in robust deviations.

    Source: Iglewicz and Hoaglin 1993, "How to detect and handle outliers": flagged beyond 3.5.
    """
    errors = targets.astype(np.float64) - values
    rows, columns = np.nonzero(~np.isnan(errors))
    scores = np.zeros(errors.shape)
    for k in range(errors.shape[1]):
        there = ~np.isnan(errors[:, k])
        if there.any():
            scores[there, k] = _deviations(errors[there, k])
    cells = scores[rows, columns]
    unknown = np.full((len(rows), 2), np.nan)
    return _ordered(rows, columns, targets[rows, columns], values[rows, columns], cells, cells > FAR, unknown)


def _deviations(errors: np.ndarray) -> np.ndarray:
    """How far each lies from the median; by the plain deviation where more than half of them are equal."""
    apart = np.abs(errors - np.median(errors))
    scale = NORMAL * float(np.median(apart)) or float(errors.std())
    return apart / scale if scale else apart


def _ordered(
    rows: np.ndarray,
    outputs: np.ndarray,
    given: np.ndarray,
    suggested: np.ndarray,
    scores: np.ndarray,
    flagged: np.ndarray,
    chances: np.ndarray,
) -> Suspects:
    """By falling score; of equals the earlier one."""
    order = np.argsort(-scores, kind="stable")
    return Suspects(
        rows=rows[order].astype(np.int64),
        outputs=outputs[order].astype(np.int64),
        given=given[order].astype(np.float64),
        suggested=suggested[order].astype(np.float64),
        scores=scores[order].astype(np.float64),
        flagged=flagged[order],
        chances=chances[order].astype(np.float64),
    )
