"""One label with its pictures in the order of their scores, so that figures of drawn samples are cheap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64

from ..stats.areas import Area, area
from .calibration import calibration_error

FIGURES = ("average_precision", "f1", "sensitivity", "specificity", "sensitivity_at_90")
"""What `Ranked.figures` gives, in order."""
SPECIFICITY = 0.9


@dataclass(frozen=True)
class Ranked:
    """A label over the n pictures of a table, of which m are known."""

    n: int
    rows: Int64[np.ndarray, " m"]
    """The known pictures, the highest score first."""
    positive: Bool[np.ndarray, " m"]
    """Which of them have it."""
    scores: Float64[np.ndarray, " m"]
    answered: Bool[np.ndarray, " m"]
    """Which are answered so."""
    last: Int64[np.ndarray, " s"]
    """Where each run of equal scores ends."""

    @classmethod
    def of(
        cls,
        known: Bool[np.ndarray, " n"],
        positive: Bool[np.ndarray, " n"],
        scores: Float64[np.ndarray, " n"],
        answered: Bool[np.ndarray, " n"],
    ) -> Ranked:
        """In order."""
        rows = np.flatnonzero(known)
        rows = rows[np.argsort(-scores[rows], kind="stable")]
        ends = np.append(np.flatnonzero(np.diff(scores[rows])), len(rows) - 1) if len(rows) else np.zeros(0, np.int64)
        return cls(len(known), rows, positive[rows], scores[rows], answered[rows], ends)

    @property
    def positives(self) -> int:
        """Known pictures with the label."""
        return int(self.positive.sum())

    @property
    def negatives(self) -> int:
        """Known pictures without it."""
        return int((~self.positive).sum())

    def figures(self, counts: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, " figures"]:
        """FIGURES where each picture of the table is there `counts` times; NaN for what these cannot show."""
        weights = counts[self.rows]
        ups, downs = weights * self.positive, weights * ~self.positive
        P, N = ups.sum(), downs.sum()
        found, alarms = (ups * self.answered).sum(), (downs * self.answered).sum()
        hits, wrong = np.cumsum(ups)[self.last], np.cumsum(downs)[self.last]  # answering from each score on
        with np.errstate(invalid="ignore", divide="ignore"):
            precision = hits / np.maximum(hits + wrong, 1)
            average_precision = (np.diff(hits, prepend=0) * precision).sum() / P
            f1 = 2 * found / (P + found + alarms)
            allowed = hits[wrong <= (1 - SPECIFICITY) * N + 1e-9]
            best = (allowed[-1] if len(allowed) else 0) / P
            return np.array([average_precision, f1, found / P, 1 - alarms / N, best if N else np.nan])

    def area(self, groups: np.ndarray | None) -> Area | None:
        """Under the ROC curve; None where all known pictures are of one kind."""
        if not (self.positives and self.negatives):
            return None
        known, positive, scores = np.zeros(self.n, bool), np.zeros(self.n, bool), np.zeros(self.n)
        known[self.rows], positive[self.rows], scores[self.rows] = True, self.positive, self.scores
        return area(positive, scores, known, groups)

    def calibration_error(self) -> float:
        """Of the probability of the label."""
        return calibration_error(self.scores, self.positive)
