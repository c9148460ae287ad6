"""Binary targets of a table with their error rates, operating points to choose thresholds from, and worst failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped

from ..evaluate import thresholds
from ..evaluate.decisions import Decisions
from ..evaluate.predictions import (
    LABEL_THRESHOLD,
    UNKNOWN_CLASS,
    ClassificationPredictions,
    MultilabelPredictions,
    TaskPredictions,
)
from ..evaluate.thresholds import MIN_PER_SIDE, ThresholdRule
from ..stats.predictive import PredictiveValues, Rate, predictive_values
from .proportions import Proportion, estimate_proportion
from .thumbnails import Thumbnails


@dataclass(frozen=True, kw_only=True, eq=False)
class BinaryTarget:
    """One label, or one class against the others, on its m known images."""

    name: str
    rows: Int64[np.ndarray, " m"]
    """Their rows in the table."""
    present: Bool[np.ndarray, " m"]
    """Ground truth."""
    probabilities: Float64[np.ndarray, " m"]
    """Predicted probabilities."""
    predicted: Bool[np.ndarray, " m"]
    """Positive predictions."""
    groups: Shaped[np.ndarray, " m"] | None = None
    """Groups, such as patients."""
    threshold: float | None
    """Decision threshold; None if no single threshold gives the predictions."""
    rule_words: str
    """The decision rule in that case, as text."""
    prevalence: float
    """Fraction of positives where the model is used, strictly between 0 and 1."""
    prevalence_given: bool = False
    """Whether the prevalence was given; otherwise it is that of these images."""

    @cached_property
    def miss_rate(self) -> Proportion | None:
        """False negative rate; None without positives."""
        return self.proportion_of_positives(~self.predicted)

    @cached_property
    def false_alarm_rate(self) -> Proportion | None:
        """False positive rate; None without negatives."""
        return self.proportion_of_negatives(self.predicted)

    def proportion_of_positives(self, mask: Bool[np.ndarray, " m"]) -> Proportion | None:
        """Proportion of the positives in a mask."""
        return estimate_proportion(mask, self.groups, self.present)

    def proportion_of_negatives(self, mask: Bool[np.ndarray, " m"]) -> Proportion | None:
        """Proportion of the negatives in a mask."""
        return estimate_proportion(mask, self.groups, ~self.present)

    @cached_property
    def predictive_values(self) -> PredictiveValues:
        """Predictive values at the prevalence."""
        if self.miss_rate is None or self.false_alarm_rate is None:
            return PredictiveValues(None, None)
        sensitivity, specificity = _complement_rate(self.miss_rate), _complement_rate(self.false_alarm_rate)
        return predictive_values(sensitivity, specificity, self.prevalence)

    @property
    def positives(self) -> int:
        """Number of positives."""
        return int(self.present.sum())

    @property
    def negatives(self) -> int:
        """Number of negatives."""
        return int((~self.present).sum())


def binary_targets(
    predictions: TaskPredictions,
    decisions: Decisions,
    positive: str = "",
    prevalences: Mapping[str, float] | None = None,
    groups: Shaped[np.ndarray, " n"] | None = None,
) -> list[BinaryTarget]:
    """The binary targets of a table of classes or labels, in the order of the model's outputs.

    Args:
        positive: only this class or label.
        prevalences: given prevalences by name.
        groups: group of each image of the table.
    """
    if isinstance(predictions, MultilabelPredictions):
        indices = [predictions.classes.index(positive)] if positive else list(range(len(predictions.classes)))
        targets = [_label_target(predictions, decisions, index) for index in indices]
    else:
        assert isinstance(predictions, ClassificationPredictions)
        indices = target_class_indices(predictions, decisions, positive)
        targets = [_class_target(predictions, decisions, index) for index in indices]
    given = prevalences or {}
    return [
        replace(
            one,
            groups=None if groups is None else groups[one.rows],
            prevalence=given.get(one.name, one.prevalence),
            prevalence_given=one.name in given,
        )
        for one in targets
    ]


def target_class_indices(predictions: ClassificationPredictions, decisions: Decisions, positive: str = "") -> list[int]:
    """Indices of the target classes: the named one, the rarer one of two, or all of them."""
    named = positive or decisions.positive
    if named:
        return [predictions.classes.index(named)]
    if len(predictions.classes) != 2 or predictions.targets is None:
        return list(range(len(predictions.classes)))
    counts = [int((predictions.targets == index).sum()) for index in range(2)]
    return [int(counts[1] < counts[0])]


def _label_target(predictions: MultilabelPredictions, decisions: Decisions, index: int) -> BinaryTarget:
    rows = np.flatnonzero(predictions.known_mask[:, index])
    targets = predictions.targets if predictions.targets is not None else np.zeros(predictions.probabilities.shape)
    return _make_binary_target(
        predictions.classes[index],
        rows,
        targets[rows, index] >= LABEL_THRESHOLD,
        predictions.probabilities[rows, index],
        predictions.indicators[rows, index],
        decisions.thresholds[index] if decisions.thresholds else LABEL_THRESHOLD,
        "by each model's own",
    )


def _class_target(predictions: ClassificationPredictions, decisions: Decisions, index: int) -> BinaryTarget:
    targets = np.full(len(predictions), UNKNOWN_CLASS) if predictions.targets is None else predictions.targets
    rows, name = np.flatnonzero(targets != UNKNOWN_CLASS), predictions.classes[index]
    threshold, rule_words = None, "where likeliest"
    if decisions.thresholds and name == decisions.positive:
        threshold = decisions.thresholds[0]
    elif decisions.thresholds:
        rule_words = f"where not {decisions.positive}"
    return _make_binary_target(
        name,
        rows,
        targets[rows] == index,
        predictions.probabilities[rows, index],
        predictions.indices[rows] == index,
        threshold,
        rule_words,
    )


def _make_binary_target(
    name: str,
    rows: np.ndarray,
    present: np.ndarray,
    probabilities: np.ndarray,
    predicted: np.ndarray,
    threshold: float | None,
    rule_words: str,
) -> BinaryTarget:
    """A target at the prevalence of its images, without groups."""
    exact, n, positives = probabilities.astype(np.float64), len(present), int(present.sum())
    follows = threshold is not None and bool(((exact >= threshold) == predicted).all())
    return BinaryTarget(
        name=name,
        rows=rows,
        present=present.astype(bool),
        probabilities=exact,
        predicted=predicted.astype(bool),
        threshold=threshold if follows else None,
        rule_words=rule_words,
        prevalence=positives / n if 0 < positives < n else (positives + 0.5) / (n + 1),  # strictly between 0 and 1
    )


def _complement_rate(share: Proportion) -> Rate:
    low, high = share.interval
    return Rate(1 - share.value, type(share.interval)(1 - high, 1 - low))


# -- Operating points: thresholds chosen on the validation images by a rule and measured on the held-out ones

TARGET_ERROR_RATES = (0.05, 0.02, 0.01, 0.005)
"""Target rates of false rejects, or of escapes."""
MISS_COSTS = (1.0, 10.0, 100.0)
"""Costs of an escape in false rejects."""


class OperatingPoint(NamedTuple):
    """One threshold with its error rates."""

    aim: str
    """Its purpose as text."""
    rule: str
    """As in `--decisions.threshold_rule`; empty for the model's own threshold."""
    threshold: float | None
    """None where the most probable class is predicted."""
    miss_rate: Proportion | None
    false_alarm_rate: Proportion | None
    aim_met: bool = True
    """Whether the aim is met on the held-out images."""


class GrayZone(NamedTuple):
    """Two thresholds: a part passes below the lower one, is rejected from the upper one on, else inspected again."""

    aim: float
    """Target rate of misses, and of false alarms."""
    low: float
    high: float
    miss_rate: Proportion | None
    """Fraction of the positives that pass."""
    false_alarm_rate: Proportion | None
    """Fraction of the negatives that are rejected."""
    gray_share: float
    """Fraction of all parts between the two, at the given prevalence."""

    @property
    def is_empty(self) -> bool:
        """Whether one threshold meets both rates."""
        return self.low >= self.high


class ThresholdChoices(NamedTuple):
    """The operating points of one class or label."""

    target: BinaryTarget
    rows: list[OperatingPoint]
    zones: list[GrayZone]
    unavailable_reason: str
    """Why there are no thresholds to choose from; empty otherwise."""
    basis: BinaryTarget | None
    """The validation images that thresholds were chosen on; None if these are the measured images themselves."""


def compute_operating_points(binary_target: BinaryTarget, validation: BinaryTarget | None) -> ThresholdChoices:
    """Compute the operating points and gray zones of a target.

    Args:
        validation: the same target on the validation images; None if none are stored.
    """
    current = OperatingPoint(
        "as the model answers", "", binary_target.threshold, binary_target.miss_rate, binary_target.false_alarm_rate
    )
    chosen_on = binary_target if validation is None else validation
    if min(chosen_on.positives, chosen_on.negatives) < MIN_PER_SIDE:
        why = (
            f"thresholds need {MIN_PER_SIDE} validation pictures with {binary_target.name} and {MIN_PER_SIDE} without "
            f"it, and there are {chosen_on.positives:,} and {chosen_on.negatives:,}"
        )
        return ThresholdChoices(binary_target, [current], [], why, validation)
    rows = [current]
    for rate in TARGET_ERROR_RATES:
        aim, rule = f"false rejects at most {100 * rate:g}\u202f%", ThresholdRule("specificity", 1 - rate)
        row = _measure_operating_point(aim, rule, binary_target, chosen_on)
        rows.append(row._replace(aim_met=row.false_alarm_rate is None or row.false_alarm_rate.value <= rate))
    for rate in TARGET_ERROR_RATES:
        aim, rule = f"escapes at most {100 * rate:g}\u202f%", ThresholdRule("sensitivity", 1 - rate)
        row = _measure_operating_point(aim, rule, binary_target, chosen_on)
        rows.append(row._replace(aim_met=row.miss_rate is None or row.miss_rate.value <= rate))
    for cost in MISS_COSTS:
        aim = f"an escape costs {cost:g} false reject{'s' if cost > 1 else ''}"
        weight = float(f"{cost * _prevalence_odds_ratio(binary_target, chosen_on):.3g}")
        rows.append(_measure_operating_point(aim, ThresholdRule("cost", weight), binary_target, chosen_on))
    zones = [_compute_gray_zone(rate, binary_target, chosen_on) for rate in TARGET_ERROR_RATES]
    return ThresholdChoices(binary_target, rows, zones, "", validation)


def _measure_operating_point(
    aim: str, rule: ThresholdRule, target: BinaryTarget, validation: BinaryTarget
) -> OperatingPoint:
    value = thresholds.choose_threshold(rule, validation.present, validation.probabilities).value
    predicted = target.probabilities >= value
    return OperatingPoint(
        aim, str(rule), value, target.proportion_of_positives(~predicted), target.proportion_of_negatives(predicted)
    )


def _compute_gray_zone(error_rate: float, binary_target: BinaryTarget, validation: BinaryTarget) -> GrayZone:
    low, high = (
        thresholds.choose_threshold(rule, validation.present, validation.probabilities).value
        for rule in (ThresholdRule("sensitivity", 1 - error_rate), ThresholdRule("specificity", 1 - error_rate))
    )
    passed, rejected = binary_target.probabilities < min(low, high), binary_target.probabilities >= high
    between, present = ~passed & ~rejected, binary_target.present
    gray_positives = float(between[present].mean()) if present.any() else 0.0
    gray_negatives = float(between[~present].mean()) if not present.all() else 0.0
    return GrayZone(
        aim=error_rate,
        low=low,
        high=high,
        miss_rate=binary_target.proportion_of_positives(passed),
        false_alarm_rate=binary_target.proportion_of_negatives(rejected),
        gray_share=binary_target.prevalence * gray_positives + (1 - binary_target.prevalence) * gray_negatives,
    )


def _prevalence_odds_ratio(target: BinaryTarget, validation: BinaryTarget) -> float:
    """Weight of a miss on the validation images at the given prevalence: ratio of the odds; 1 if none was given.

    With one defect in a hundred parts escapes are rare, and false rejects dominate the cost.
    """
    if not target.prevalence_given:
        return 1.0
    return target.prevalence / (1 - target.prevalence) * validation.negatives / validation.positives


# -- Worst failures: the most confident misses and false alarms

MAX_FAILURES = 6
"""Misses on a page, and as many false alarms."""


class WrongPrediction(NamedTuple):
    """One wrong prediction."""

    row: int
    """Row of the table."""
    name: str
    """The target that was missed, or falsely predicted."""
    probability: float
    """Predicted probability of the target."""
    threshold: float | None
    """Decision threshold; None where the most probable class is predicted."""
    actual: str
    """The true class; empty for labels."""
    predicted: str
    """The predicted class; empty for labels."""
    id: str
    """Id of the image."""
    uri: str
    """Data URI of the thumbnail; empty if none was stored."""
    small: bool
    """Drawn with sharp pixels."""
    is_miss: bool

    @property
    def alt(self) -> str:
        """Alternative text for screen readers."""
        what = f"is {self.actual}, answered {self.predicted}" if self.predicted else ""
        has = f"has {self.name}, not answered so" if self.is_miss else f"has no {self.name}, answered with it"
        return f"{what or has}, probability of {self.name} {self.probability:.1%}"


def worst_rows(targets: Sequence[BinaryTarget]) -> Int64[np.ndarray, " rows"]:
    """Rows of the table with the worst misses, then those with the worst false alarms; each row once."""
    pairs = [*_worst_misses(targets), *_worst_false_alarms(targets)]
    return np.array(list(dict.fromkeys(row for row, _ in pairs)), np.int64)


def find_worst_failures(
    targets: Sequence[BinaryTarget], predictions: TaskPredictions, thumbnails: Thumbnails
) -> tuple[list[WrongPrediction], list[WrongPrediction]]:
    """Misses, the lowest probability first, and false alarms, the highest first."""

    def describe_wrong(row: int, target: BinaryTarget, is_miss: bool) -> WrongPrediction:
        image = thumbnails.get(row)
        actual, predicted = "", ""
        if isinstance(predictions, ClassificationPredictions) and predictions.targets is not None:
            actual = predictions.classes[int(predictions.targets[row])]
            predicted = predictions.classes[int(predictions.indices[row])]
        return WrongPrediction(
            row=row,
            name=target.name,
            probability=float(target.probabilities[np.searchsorted(target.rows, row)]),
            threshold=target.threshold,
            actual=actual,
            predicted=predicted,
            id=predictions.ids[row],
            uri="" if image is None else image.uri,
            small=image is not None and image.small,
            is_miss=is_miss,
        )

    misses = [describe_wrong(row, target, True) for row, target in _worst_misses(targets)]
    return misses, [describe_wrong(row, target, False) for row, target in _worst_false_alarms(targets)]


def _worst_misses(targets: Sequence[BinaryTarget]) -> list[tuple[int, BinaryTarget]]:
    pairs = [(target, i) for target in targets for i in np.flatnonzero(target.present & ~target.predicted)]
    pairs.sort(key=lambda pair: pair[0].probabilities[pair[1]])
    return [(int(target.rows[i]), target) for target, i in pairs[:MAX_FAILURES]]


def _worst_false_alarms(targets: Sequence[BinaryTarget]) -> list[tuple[int, BinaryTarget]]:
    pairs = [(target, i) for target in targets for i in np.flatnonzero(~target.present & target.predicted)]
    pairs.sort(key=lambda pair: -pair[0].probabilities[pair[1]])
    return [(int(target.rows[i]), target) for target, i in pairs[:MAX_FAILURES]]
