"""From which probability on a label is answered: chosen on validation pictures by a rule that is written down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, cast, get_args

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

from ..errors import UsageError
from ..stats.intervals import Interval, wilson

Kind = Literal["half", "f1", "youden", "sensitivity", "specificity", "cost"]
FEWEST = 10
"""Validation pictures with and without a label that a rule needs; with fewer a label is answered from one half on."""
HALF = 0.5


@dataclass(frozen=True)
class Rule:
    """How a threshold is chosen.

    half            always 0.5
    f1              the largest F1
    youden          the largest sum of sensitivity and specificity
    sensitivity S   the highest threshold that finds at least this share of the pictures with the label
    specificity S   the lowest threshold that leaves at least this share of the others alone
    cost C          the smallest cost, where a picture that is missed costs as much as C false alarms
    """

    kind: Kind
    value: float | None = None

    @classmethod
    def read(cls, text: str) -> Rule:
        """A rule as a person writes it.

        Raises:
            UsageError: no such rule, or a number that it cannot have.
        """
        kind, _, number = text.strip().partition(" ")
        needs_one = kind in ("sensitivity", "specificity", "cost")
        try:
            value = float(number) if needs_one else None
            good = kind in get_args(Kind) and (needs_one or not number)
        except ValueError:
            good, value = False, None
        top = 1.0 if kind != "cost" else float("inf")
        if not good or (value is not None and not 0 < value < top):
            raise UsageError(
                "A rule for thresholds must be half, f1, youden, sensitivity SHARE, specificity SHARE or cost NUMBER, "
                f'for example "sensitivity 0.95". Got {text!r}.'
            )
        return cls(cast("Kind", kind), value)

    def __str__(self) -> str:
        return self.kind if self.value is None else f"{self.kind} {self.value:g}"


class Threshold(NamedTuple):
    """A threshold with what it gave on the pictures that it was chosen on."""

    value: float
    sensitivity: float | None
    sensitivity_interval: Interval
    specificity: float | None
    specificity_interval: Interval
    chosen: bool
    """Whether the rule was followed; there were too few pictures otherwise."""


class Operating(NamedTuple):
    """Every way to cut the scores of n pictures in two, from answering nobody to answering everybody."""

    values: Float64[np.ndarray, " m"]
    """Thresholds, falling; each lies half-way between two scores, so that rounding does not move a picture over it."""
    found: Int64[np.ndarray, " m"]
    """Pictures with the label that are answered."""
    alarms: Int64[np.ndarray, " m"]
    """Pictures without it that are answered."""

    @property
    def sensitivity(self) -> Float64[np.ndarray, " m"]:
        """Share of the pictures with the label that are answered."""
        return self.found / self.found[-1]

    @property
    def specificity(self) -> Float64[np.ndarray, " m"]:
        """Share of the others that are not."""
        return 1 - self.alarms / self.alarms[-1]


def operating(positive: Bool[np.ndarray, " n"], chances: Float[np.ndarray, " n"]) -> Operating:
    """The points of the ROC curve; both kinds of pictures are there."""
    scores, numbers = np.unique(-chances.astype(np.float64), return_inverse=True)
    scores = -scores  # falling
    ups = np.bincount(numbers, positive).astype(np.int64)
    downs = np.bincount(numbers, ~positive).astype(np.int64)
    ends = np.concatenate([[1.0], scores, [0.0]])
    values = (ends[:-1] + ends[1:]) / 2
    values[0] = max(values[0], np.nextafter(scores[0], 2))  # answers nobody, also where the highest score is 1
    return Operating(
        values=values,
        found=np.concatenate([[0], np.cumsum(ups)]),
        alarms=np.concatenate([[0], np.cumsum(downs)]),
    )


def choose(rule: Rule, positive: Bool[np.ndarray, " n"], chances: Float[np.ndarray, " n"]) -> Threshold:
    """The threshold of one label, from validation pictures of which it is known.

    Among equally good ones the nearest to one half is taken.
    """
    few = min(int(positive.sum()), int((~positive).sum())) < FEWEST
    value = HALF if few or rule.kind == "half" else _best(rule, operating(positive, chances))
    return at(value, positive, chances, chosen=not few)


def at(
    value: float, positive: Bool[np.ndarray, " n"], chances: Float[np.ndarray, " n"], chosen: bool = True
) -> Threshold:
    """What a threshold gives on some pictures."""
    answered = chances >= value
    n, found, left = int(positive.sum()), int((answered & positive).sum()), int((~answered & ~positive).sum())
    others = len(positive) - n
    return Threshold(
        value=value,
        sensitivity=found / n if n else None,
        sensitivity_interval=wilson(found, n),
        specificity=left / others if others else None,
        specificity_interval=wilson(left, others),
        chosen=chosen,
    )


def _best(rule: Rule, points: Operating) -> float:
    sensitivity, specificity = points.sensitivity, points.specificity
    if rule.kind == "sensitivity":
        assert rule.value is not None
        return float(points.values[int(np.argmax(sensitivity >= rule.value - 1e-12))])
    if rule.kind == "specificity":
        assert rule.value is not None
        return float(points.values[int(np.flatnonzero(specificity >= rule.value - 1e-12)[-1])])
    worth = _worth(rule, points)
    best = np.flatnonzero(worth >= worth.max() - 1e-12)
    return float(points.values[best[np.argmin(np.abs(points.values[best] - HALF))]])


def _worth(rule: Rule, points: Operating) -> np.ndarray:
    if rule.kind == "youden":
        return points.sensitivity + points.specificity
    if rule.kind == "cost":
        assert rule.value is not None
        return -(rule.value * (points.found[-1] - points.found) + points.alarms).astype(np.float64)
    return 2 * points.found / (points.found[-1] + points.found + points.alarms)
