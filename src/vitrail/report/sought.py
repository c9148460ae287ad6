"""What is looked for: each label, or a class against all others, on the pictures of which it is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped

from ..evaluate.decisions import Decisions
from ..evaluate.prediction_tables import TaskPredictions
from ..evaluate.predictions import LABEL_THRESHOLD, UNKNOWN_CLASS, ClassificationPredictions, MultilabelPredictions
from ..stats.predictive import PredictiveValues, Rate, predictive_values
from .shares import Share, share_of

WHERE = "where likeliest"
"""When a class is answered that has no threshold."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sought:
    """One label or class, over the m pictures of which it is known."""

    name: str
    rows: Int64[np.ndarray, " m"]
    """Their rows in the table."""
    present: Bool[np.ndarray, " m"]
    """Which of them have it."""
    chances: Float64[np.ndarray, " m"]
    """The probability that each is given."""
    said: Bool[np.ndarray, " m"]
    """Which are answered with it."""
    groups: Shaped[np.ndarray, " m"] | None
    """Such as their patients."""
    threshold: float | None
    """From which probability on it is answered; None where no single one says so."""
    otherwise: str
    """What says so then, in words."""
    prevalence: float
    """Share that has it, between 0 and 1."""
    stated: bool
    """Whether a person has said so; otherwise it is the share of these pictures."""

    @cached_property
    def missed(self) -> Share | None:
        """Of the pictures with it those that are not answered so; None where none has it."""
        return self.of_present(~self.said)

    @cached_property
    def alarms(self) -> Share | None:
        """Of the pictures without it those that are answered so; None where all have it."""
        return self.of_absent(self.said)

    def of_present(self, which: Bool[np.ndarray, " m"]) -> Share | None:
        """A share of the pictures with it."""
        return share_of(which[self.present], None if self.groups is None else self.groups[self.present])

    def of_absent(self, which: Bool[np.ndarray, " m"]) -> Share | None:
        """A share of the pictures without it."""
        return share_of(which[~self.present], None if self.groups is None else self.groups[~self.present])

    @cached_property
    def worth(self) -> PredictiveValues:
        """What its answers are worth at the prevalence."""
        if self.missed is None or self.alarms is None:
            return PredictiveValues(None, None)
        return predictive_values(_rest(self.missed), _rest(self.alarms), self.prevalence)

    @property
    def positives(self) -> int:
        """Pictures that have it."""
        return int(self.present.sum())

    @property
    def negatives(self) -> int:
        """Pictures that are known not to have it."""
        return int((~self.present).sum())


def sought(
    answers: TaskPredictions,
    decided: Decisions,
    positive: str = "",
    prevalences: Mapping[str, float] | None = None,
    groups: Shaped[np.ndarray, " n"] | None = None,
) -> list[Sought]:
    """Everything that a table of classes or labels looks for, in the order of the model's outputs.

    Args:
        positive: only this class or label.
        prevalences: those that a person has stated, by name.
        groups: of each picture of the table.
    """
    stated = prevalences or {}
    if isinstance(answers, MultilabelPredictions):
        places = [answers.classes.index(positive)] if positive else list(range(len(answers.classes)))
        return [_label(answers, decided, place, stated, groups) for place in places]
    assert isinstance(answers, ClassificationPredictions)
    return [_class(answers, decided, place, stated, groups) for place in chosen(answers, decided, positive)]


def chosen(answers: ClassificationPredictions, decided: Decisions, positive: str = "") -> list[int]:
    """Which classes are looked for: one that is named, of two the rarer one, else each against all others."""
    named = positive or decided.positive
    if named:
        return [answers.classes.index(named)]
    if len(answers.classes) != 2 or answers.targets is None:
        return list(range(len(answers.classes)))
    counts = [int((answers.targets == place).sum()) for place in range(2)]
    return [int(counts[1] < counts[0])]


def _label(
    answers: MultilabelPredictions,
    decided: Decisions,
    place: int,
    stated: Mapping[str, float],
    groups: np.ndarray | None,
) -> Sought:
    rows = np.flatnonzero(answers.known[:, place])
    targets = answers.targets if answers.targets is not None else np.zeros(answers.probabilities.shape)
    return _over(
        answers.classes[place],
        rows,
        targets[rows, place] >= LABEL_THRESHOLD,
        answers.probabilities[rows, place],
        answers.labels[rows, place],
        decided.thresholds[place] if decided.thresholds else LABEL_THRESHOLD,
        "by each model's own",
        stated,
        groups,
    )


def _class(
    answers: ClassificationPredictions,
    decided: Decisions,
    place: int,
    stated: Mapping[str, float],
    groups: np.ndarray | None,
) -> Sought:
    targets = np.full(len(answers), UNKNOWN_CLASS) if answers.targets is None else answers.targets
    rows, name = np.flatnonzero(targets != UNKNOWN_CLASS), answers.classes[place]
    cut = decided.thresholds[0] if decided.thresholds else None
    other = f"where not {decided.positive}" if cut is not None and name != decided.positive else WHERE
    return _over(
        name,
        rows,
        targets[rows] == place,
        answers.probabilities[rows, place],
        answers.labels[rows] == place,
        cut if name == decided.positive else None,
        other,
        stated,
        groups,
    )


def _over(
    name: str,
    rows: np.ndarray,
    present: np.ndarray,
    chances: np.ndarray,
    said: np.ndarray,
    threshold: float | None,
    otherwise: str,
    stated: Mapping[str, float],
    groups: np.ndarray | None,
) -> Sought:
    exact, n, positives = chances.astype(np.float64), len(present), int(present.sum())
    follows = threshold is not None and bool(((exact >= threshold) == said).all())
    inside = positives / n if 0 < positives < n else (positives + 0.5) / (n + 1)  # never none, and never all
    return Sought(
        name=name,
        rows=rows,
        present=present.astype(bool),
        chances=exact,
        said=said.astype(bool),
        groups=None if groups is None else groups[rows],
        threshold=threshold if follows else None,
        otherwise=otherwise,
        prevalence=stated.get(name, inside),
        stated=name in stated,
    )


def _rest(share: Share) -> Rate:
    low, high = share.interval
    return Rate(1 - share.value, type(share.interval)(1 - high, 1 - low))
