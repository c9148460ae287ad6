"""What is looked for: each label, or a class against all others, on the pictures of which it is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped

from ..evaluate import thresholds
from ..evaluate.decisions import Decisions
from ..evaluate.prediction_tables import TaskPredictions
from ..evaluate.predictions import LABEL_THRESHOLD, UNKNOWN_CLASS, ClassificationPredictions, MultilabelPredictions
from ..evaluate.thresholds import MIN_PER_SIDE, ThresholdRule
from ..stats.predictive import PredictiveValues, Rate, predictive_values
from .proportions import Proportion, estimate_proportion
from .thumbnails import StoredThumbnail

ARGMAX_WORDS = "where likeliest"
"""When a class is answered that has no threshold."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BinaryTarget:
    """One label or class, over the m pictures of which it is known."""

    name: str
    rows: Int64[np.ndarray, " m"]
    """Their rows in the table."""
    present: Bool[np.ndarray, " m"]
    """Which of them have it."""
    probabilities: Float64[np.ndarray, " m"]
    """The probability that each is given."""
    predicted: Bool[np.ndarray, " m"]
    """Which are answered with it."""
    groups: Shaped[np.ndarray, " m"] | None
    """Such as their patients."""
    threshold: float | None
    """From which probability on it is answered; None where no single one says so."""
    rule_words: str
    """What says so then, in words."""
    prevalence: float
    """Share that has it, between 0 and 1."""
    prevalence_given: bool
    """Whether a person has said so; otherwise it is the share of these pictures."""

    @cached_property
    def miss_rate(self) -> Proportion | None:
        """Of the pictures with it those that are not answered so; None where none has it."""
        return self.proportion_of_positives(~self.predicted)

    @cached_property
    def false_alarm_rate(self) -> Proportion | None:
        """Of the pictures without it those that are answered so; None where all have it."""
        return self.proportion_of_negatives(self.predicted)

    def proportion_of_positives(self, mask: Bool[np.ndarray, " m"]) -> Proportion | None:
        """A share of the pictures with it."""
        return estimate_proportion(mask[self.present], None if self.groups is None else self.groups[self.present])

    def proportion_of_negatives(self, mask: Bool[np.ndarray, " m"]) -> Proportion | None:
        """A share of the pictures without it."""
        return estimate_proportion(mask[~self.present], None if self.groups is None else self.groups[~self.present])

    @cached_property
    def predictive_values(self) -> PredictiveValues:
        """What its answers are worth at the prevalence."""
        if self.miss_rate is None or self.false_alarm_rate is None:
            return PredictiveValues(None, None)
        return predictive_values(
            _complement_rate(self.miss_rate), _complement_rate(self.false_alarm_rate), self.prevalence
        )

    @property
    def positives(self) -> int:
        """Pictures that have it."""
        return int(self.present.sum())

    @property
    def negatives(self) -> int:
        """Pictures that are known not to have it."""
        return int((~self.present).sum())


def binary_targets(
    predictions: TaskPredictions,
    decisions: Decisions,
    positive: str = "",
    prevalences: Mapping[str, float] | None = None,
    groups: Shaped[np.ndarray, " n"] | None = None,
) -> list[BinaryTarget]:
    """Everything that a table of classes or labels looks for, in the order of the model's outputs.

    Args:
        positive: only this class or label.
        prevalences: those that a person has stated, by name.
        groups: of each picture of the table.
    """
    stated = prevalences or {}
    if isinstance(predictions, MultilabelPredictions):
        places = [predictions.classes.index(positive)] if positive else list(range(len(predictions.classes)))
        return [_label_target(predictions, decisions, place, stated, groups) for place in places]
    assert isinstance(predictions, ClassificationPredictions)
    return [
        _class_target(predictions, decisions, place, stated, groups)
        for place in target_class_indices(predictions, decisions, positive)
    ]


def target_class_indices(predictions: ClassificationPredictions, decisions: Decisions, positive: str = "") -> list[int]:
    """Which classes are looked for: one that is named, of two the rarer one, else each against all others."""
    named = positive or decisions.positive
    if named:
        return [predictions.classes.index(named)]
    if len(predictions.classes) != 2 or predictions.targets is None:
        return list(range(len(predictions.classes)))
    counts = [int((predictions.targets == place).sum()) for place in range(2)]
    return [int(counts[1] < counts[0])]


def _label_target(
    predictions: MultilabelPredictions,
    decisions: Decisions,
    index: int,
    prevalences: Mapping[str, float],
    groups: np.ndarray | None,
) -> BinaryTarget:
    rows = np.flatnonzero(predictions.known_mask[:, index])
    targets = predictions.targets if predictions.targets is not None else np.zeros(predictions.probabilities.shape)
    return _make_binary_target(
        predictions.classes[index],
        rows,
        targets[rows, index] >= LABEL_THRESHOLD,
        predictions.probabilities[rows, index],
        predictions.labels[rows, index],
        decisions.thresholds[index] if decisions.thresholds else LABEL_THRESHOLD,
        "by each model's own",
        prevalences,
        groups,
    )


def _class_target(
    predictions: ClassificationPredictions,
    decisions: Decisions,
    index: int,
    prevalences: Mapping[str, float],
    groups: np.ndarray | None,
) -> BinaryTarget:
    targets = np.full(len(predictions), UNKNOWN_CLASS) if predictions.targets is None else predictions.targets
    rows, name = np.flatnonzero(targets != UNKNOWN_CLASS), predictions.classes[index]
    cut = decisions.thresholds[0] if decisions.thresholds else None
    other = f"where not {decisions.positive}" if cut is not None and name != decisions.positive else ARGMAX_WORDS
    return _make_binary_target(
        name,
        rows,
        targets[rows] == index,
        predictions.probabilities[rows, index],
        predictions.labels[rows] == index,
        cut if name == decisions.positive else None,
        other,
        prevalences,
        groups,
    )


def _make_binary_target(
    name: str,
    rows: np.ndarray,
    present: np.ndarray,
    probabilities: np.ndarray,
    predicted: np.ndarray,
    threshold: float | None,
    rule_words: str,
    prevalences: Mapping[str, float],
    groups: np.ndarray | None,
) -> BinaryTarget:
    exact, n, positives = probabilities.astype(np.float64), len(present), int(present.sum())
    follows = threshold is not None and bool(((exact >= threshold) == predicted).all())
    inside = positives / n if 0 < positives < n else (positives + 0.5) / (n + 1)  # never none, and never all
    return BinaryTarget(
        name=name,
        rows=rows,
        present=present.astype(bool),
        probabilities=exact,
        predicted=predicted.astype(bool),
        groups=None if groups is None else groups[rows],
        threshold=threshold if follows else None,
        rule_words=rule_words,
        prevalence=prevalences.get(name, inside),
        prevalence_given=name in prevalences,
    )


def _complement_rate(share: Proportion) -> Rate:
    low, high = share.interval
    return Rate(1 - share.value, type(share.interval)(1 - high, 1 - low))


# Thresholds to choose from: each found on the validation pictures by a rule, and measured on the held-out ones.
#
# A single threshold parts what is passed from what is rejected; two leave a grey zone between them, whose parts are
# inspected again.

TARGET_ERROR_RATES = (0.05, 0.02, 0.01, 0.005)
"""Shares of false rejects, or of escapes, that are aimed at."""
MISS_COSTS = (1.0, 10.0, 100.0)
"""Of an escape, in false rejects."""


class OperatingPoint(NamedTuple):
    """One threshold."""

    aim: str
    """What it was chosen for, in words."""
    rule: str
    """As `--decisions.threshold_rule` takes it; empty for the threshold that the model has."""
    threshold: float | None
    """None where the likeliest class is answered."""
    miss_rate: Proportion | None
    false_alarm_rate: Proportion | None
    aim_met: bool = True
    """Whether the aim is kept on the pictures that it is measured on."""


class GrayZone(NamedTuple):
    """Two thresholds: below the lower one a part passes, from the upper one on it is rejected."""

    aim: float
    """Share of misses, and of false alarms, that it was chosen for."""
    low: float
    high: float
    miss_rate: Proportion | None
    """Of those with it, the share that passes."""
    false_alarm_rate: Proportion | None
    """Of those without it, the share that is rejected."""
    gray_share: float
    """Of all parts at the stated prevalence, the share between the two."""

    @property
    def is_empty(self) -> bool:
        """Whether one threshold does what the two were to do."""
        return self.low >= self.high


class ThresholdChoices(NamedTuple):
    """What can be chosen for one class or label."""

    target: BinaryTarget
    rows: list[OperatingPoint]
    zones: list[GrayZone]
    unavailable_reason: str
    """Why there is nothing to choose by; empty otherwise."""
    basis: BinaryTarget | None
    """The pictures that thresholds were chosen on; None where these are the same that they are measured on."""


def compute_operating_points(binary_target: BinaryTarget, validation: BinaryTarget | None) -> ThresholdChoices:
    """Every threshold worth a look.

    Args:
        validation: the same class or label on the validation pictures; None where there are none stored.
    """
    as_it_is = OperatingPoint(
        "as the model answers", "", binary_target.threshold, binary_target.miss_rate, binary_target.false_alarm_rate
    )
    chosen_on = binary_target if validation is None else validation
    if min(chosen_on.positives, chosen_on.negatives) < MIN_PER_SIDE:
        why = (
            f"thresholds need {MIN_PER_SIDE} validation pictures with {binary_target.name} and {MIN_PER_SIDE} "
            f"without it, "
            f"and there are "
            f"{chosen_on.positives:,} and {chosen_on.negatives:,}"
        )
        return ThresholdChoices(binary_target, [as_it_is], [], why, validation)
    rows = [as_it_is]
    for target in TARGET_ERROR_RATES:
        aim = f"false rejects at most {100 * target:g}\u202f%"
        row = _measure_operating_point(aim, ThresholdRule("specificity", 1 - target), binary_target, chosen_on)
        rows.append(row._replace(aim_met=row.false_alarm_rate is None or row.false_alarm_rate.value <= target))
    for target in TARGET_ERROR_RATES:
        aim = f"escapes at most {100 * target:g}\u202f%"
        row = _measure_operating_point(aim, ThresholdRule("sensitivity", 1 - target), binary_target, chosen_on)
        rows.append(row._replace(aim_met=row.miss_rate is None or row.miss_rate.value <= target))
    for cost in MISS_COSTS:
        aim = f"an escape costs {cost:g} false reject{'s' if cost > 1 else ''}"
        rows.append(
            _measure_operating_point(
                aim,
                ThresholdRule("cost", float(f"{cost * _prevalence_odds_ratio(binary_target, chosen_on):.3g}")),
                binary_target,
                chosen_on,
            )
        )
    return ThresholdChoices(
        binary_target,
        rows,
        [_compute_gray_zone(target, binary_target, chosen_on) for target in TARGET_ERROR_RATES],
        "",
        validation,
    )


def _measure_operating_point(
    aim: str, rule: ThresholdRule, target: BinaryTarget, validation: BinaryTarget
) -> OperatingPoint:
    value = thresholds.choose_threshold(rule, validation.present, validation.probabilities).value
    said = target.probabilities >= value
    return OperatingPoint(
        aim, str(rule), value, target.proportion_of_positives(~said), target.proportion_of_negatives(said)
    )


def _compute_gray_zone(error_rate: float, binary_target: BinaryTarget, validation: BinaryTarget) -> GrayZone:
    low = thresholds.choose_threshold(
        ThresholdRule("sensitivity", 1 - error_rate), validation.present, validation.probabilities
    ).value
    high = thresholds.choose_threshold(
        ThresholdRule("specificity", 1 - error_rate), validation.present, validation.probabilities
    ).value
    passed, rejected = binary_target.probabilities < min(low, high), binary_target.probabilities >= high
    between = ~passed & ~rejected
    return GrayZone(
        aim=error_rate,
        low=low,
        high=high,
        miss_rate=binary_target.proportion_of_positives(passed),
        false_alarm_rate=binary_target.proportion_of_negatives(rejected),
        gray_share=binary_target.prevalence * _mean_or_zero(between[binary_target.present])
        + (1 - binary_target.prevalence) * _mean_or_zero(between[~binary_target.present]),
    )


def _prevalence_odds_ratio(target: BinaryTarget, validation: BinaryTarget) -> float:
    """What a miss among the pictures chosen on weighs where the stated share has it: odds by odds; 1 if none was
    stated. With one defect in a hundred parts an escape is rare, and false rejects are what costs.
    """
    if not target.prevalence_given:
        return 1.0
    return target.prevalence / (1 - target.prevalence) * validation.negatives / validation.positives


def _mean_or_zero(mask: np.ndarray) -> float:
    return float(mask.mean()) if len(mask) else 0.0


# The worst failures: what is looked for and was missed with the least doubt, and what was seen where it is not.

MAX_FAILURES = 6
"""Misses on a page, and as many false alarms."""


class WrongPrediction(NamedTuple):
    """One wrong answer."""

    row: int
    """Of the table."""
    name: str
    """What was missed, or seen where it is not."""
    probability: float
    """The probability that it was given."""
    threshold: float | None
    """From which probability on it is answered; None where the likeliest class is."""
    actual: str
    """The class that it is; empty for labels, which are answered each by itself."""
    predicted: str
    """The class that was answered; empty for labels."""
    id: str
    """Of the picture."""
    uri: str
    """Empty where no thumbnail was stored."""
    small: bool
    """Drawn with sharp pixels."""
    is_miss: bool

    @property
    def alt(self) -> str:
        """What a screen reader says."""
        what = f"is {self.actual}, answered {self.predicted}" if self.predicted else ""
        has = f"has {self.name}, not answered so" if self.is_miss else f"has no {self.name}, answered with it"
        return f"{what or has}, probability of {self.name} {self.probability:.1%}"


def worst_rows(targets: Sequence[BinaryTarget], max_failures: int = MAX_FAILURES) -> Int64[np.ndarray, " rows"]:
    """Rows of the table with the worst misses, then those with the worst false alarms; each row once."""
    pairs = [*_worst_misses(targets, max_failures), *_worst_false_alarms(targets, max_failures)]
    return np.array(list(dict.fromkeys(row for row, _ in pairs)), np.int64)


def find_worst_failures(
    targets: Sequence[BinaryTarget],
    predictions: TaskPredictions,
    images: Sequence[StoredThumbnail],
    indices: Int64[np.ndarray, " k"],
    max_failures: int = MAX_FAILURES,
) -> tuple[list[WrongPrediction], list[WrongPrediction]]:
    """Misses, the lowest probability first, and false alarms, the highest first.

    Args:
        images, indices: the stored thumbnails, and their rows in the table.
    """
    places = {row: place for place, row in enumerate(indices.tolist())}

    def describe_wrong(row: int, thing: BinaryTarget, missed: bool) -> WrongPrediction:
        image = images[places[row]] if row in places else None
        label, said = _actual_and_predicted(predictions, row)
        return WrongPrediction(
            row=row,
            name=thing.name,
            probability=float(thing.probabilities[np.searchsorted(thing.rows, row)]),
            threshold=thing.threshold,
            actual=label,
            predicted=said,
            id=predictions.ids[row],
            uri="" if image is None else image.uri,
            small=image is not None and image.small,
            is_miss=missed,
        )

    misses = [describe_wrong(row, thing, True) for row, thing in _worst_misses(targets, max_failures)]
    return misses, [describe_wrong(row, thing, False) for row, thing in _worst_false_alarms(targets, max_failures)]


def _actual_and_predicted(predictions: TaskPredictions, row: int) -> tuple[str, str]:
    """What a picture is and what was answered; nothing of labels."""
    if not isinstance(predictions, ClassificationPredictions) or predictions.targets is None:
        return "", ""
    return predictions.classes[int(predictions.targets[row])], predictions.classes[int(predictions.labels[row])]


def _worst_misses(targets: Sequence[BinaryTarget], max_failures: int) -> list[tuple[int, BinaryTarget]]:
    found = [
        (thing.probabilities[i], thing, i)
        for thing in targets
        for i in np.flatnonzero(thing.present & ~thing.predicted)
    ]
    found.sort(key=lambda one: one[0])
    return [(int(thing.rows[i]), thing) for _, thing, i in found[:max_failures]]


def _worst_false_alarms(targets: Sequence[BinaryTarget], max_failures: int) -> list[tuple[int, BinaryTarget]]:
    found = [
        (thing.probabilities[i], thing, i)
        for thing in targets
        for i in np.flatnonzero(~thing.present & thing.predicted)
    ]
    found.sort(key=lambda one: -one[0])
    return [(int(thing.rows[i]), thing) for _, thing, i in found[:max_failures]]
