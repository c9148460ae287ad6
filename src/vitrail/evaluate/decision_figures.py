"""Figures of a decision on stored predictions: error rates, predictive values and costs, with intervals; changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
from jaxtyping import Bool, Shaped

from ..data.source import Task
from ..stats.intervals import Interval, proportion_interval
from ..stats.predictive import PredictiveValues, Rate, predictive_values
from .decisions import UNLIKE, UNSURE, Decisions
from .predictions import (
    LABEL_THRESHOLD,
    ClassificationPredictions,
    RegressionPredictions,
    TaskPredictions,
    decision_array,
)
from .prevalence import shift_probabilities
from .rule_optimism import COST_UNIT
from .tolerance_bands import INSIDE, OUTSIDE, UNSURE_VERDICT, Band, BandResult, judge_bands


@dataclass(frozen=True, kw_only=True)
class BinaryFigures:
    """Figures of one label, or of one class against the others, on the images whose target is known."""

    name: str
    threshold: float | None
    """None where the most probable class is predicted."""
    is_fitted: bool
    """Whether a rule was applied to the threshold, or it was stated."""
    positives: int
    negatives: int
    misses: int
    false_alarms: int
    sensitivity: Rate | None
    """None without positives."""
    specificity: Rate | None
    """None without negatives."""
    prevalence: float | None
    """The stated one, or that of these images; None where all or none of them are positive."""
    predictive: PredictiveValues
    """At that prevalence, which counts as exact."""
    cost: Rate | None
    """Of 1,000 images at that prevalence, in false alarms."""


@dataclass(frozen=True, kw_only=True)
class BandFigures:
    """Verdicts of one tolerance band."""

    name: str
    low: float | None
    high: float | None
    inside: int
    outside: int
    unsure: int
    wrongly_inside: Rate | None
    """Fraction of the images judged inside whose target lies outside; None where no target of theirs is known."""
    wrongly_outside: Rate | None


@dataclass(frozen=True, kw_only=True)
class DecisionFigures:
    """What a decision gives on one split."""

    split: str
    n: int
    labels: tuple[BinaryFigures, ...] = ()
    """Of every label, or of the measured classes."""
    cost: Rate | None = None
    """The sum over the labels, whose errors the interval takes as independent, or that of the only measured class."""
    abstained: Rate | None = None
    """Fraction of the images without an answer."""
    accuracy: Rate | None = None
    """Of classes, counting every image."""
    accuracy_answered: Rate | None = None
    """Of classes, counting the answered images."""
    covered: Rate | None = None
    """Fraction of the known targets within the set or range; None without sets or ranges."""
    set_size: float | None = None
    """Mean number of classes in a set."""
    bands: tuple[BandFigures, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers; unmeasured values are absent."""
        return _to_plain(self)


def apply_decisions(table: TaskPredictions, decisions: Decisions) -> TaskPredictions:
    """The stored predictions of a run as they would be under other decisions.

    Args:
        table: as the training has stored it, at the prevalence of the validation images. Which images are `unlike` the
            training stays: no decision here depends on features.
    """
    unlike = np.array([why == UNLIKE for why in table.abstain_column()], bool)
    table = replace(table, decision=decisions.version)
    if isinstance(table, RegressionPredictions):
        return replace(table, abstain_reasons=_abstain_column(unlike, np.zeros(len(table), bool)))
    task: Task = "classification" if isinstance(table, ClassificationPredictions) else "multilabel"
    chances = table.probabilities
    if decisions.prior_ratio:
        chances = shift_probabilities(task, chances, decisions.prior_ratio)
    if not isinstance(table, ClassificationPredictions):
        reasons = _abstain_column(unlike, np.zeros(len(table), bool))
        labels = decisions.predict_labels(chances)
        return replace(table, probabilities=chances, predicted=labels, abstain_reasons=reasons)
    words = decisions.abstain_reasons(chances, None, len(table))
    unsure = np.array([why == UNSURE for why in words] or [False] * len(table), bool)
    return replace(
        table,
        probabilities=chances,
        predicted=decisions.predict_classes(chances, table.classes),
        abstain_reasons=_abstain_column(unlike, unsure),
    )


def _abstain_column(unlike: Bool[np.ndarray, " n"], unsure: Bool[np.ndarray, " n"]) -> tuple[str, ...]:
    if not (unlike.any() or unsure.any()):
        return ()
    return tuple(np.where(unlike, UNLIKE, np.where(unsure, UNSURE, "")).tolist())


def count_changes(
    old: TaskPredictions, new: TaskPredictions, bands: tuple[Sequence[BandResult], Sequence[BandResult]] = ((), ())
) -> int:
    """Number of images that another decision answers otherwise: the class, any label, an abstention, or a verdict.

    Args:
        bands: verdicts under the old and the new decision.
    """
    changed = np.array(old.abstain_column()) != np.array(new.abstain_column())
    if not isinstance(old, RegressionPredictions) and not isinstance(new, RegressionPredictions):
        differs = decision_array(old) != decision_array(new)
        changed = changed | (differs if differs.ndim == 1 else differs.any(1))
    for before, after in zip(*bands, strict=True):
        changed = changed | (before.verdicts != after.verdicts)
    return int(changed.sum())


def compute_figures(
    table: TaskPredictions,
    decisions: Decisions,
    miss_cost: float = 1.0,
    prevalences: Mapping[str, float] | None = None,
    bands: Mapping[str, Band] | None = None,
    groups: Shaped[np.ndarray, " n"] | None = None,
    positive: str = "",
) -> DecisionFigures:
    """Figures of decisions on a table that `apply_decisions` made with them.

    Args:
        miss_cost: what a miss costs, in false alarms.
        prevalences: stated ones by name; the others are those of the images.
        bands: tolerance bands by column.
        groups: group of each image, such as its patient; intervals are then those of a bootstrap over groups.
        positive: the only class to measure; empty for all of them.
    """
    shared: dict[str, Any] = {"split": table.split, "n": len(table)}
    shared["abstained"] = estimate_rate(table.abstained, groups)
    judged = judge_bands(table, decisions, bands or {})
    shared["bands"] = tuple(_band_figures(one, groups) for one in judged)
    if isinstance(table, RegressionPredictions):
        return DecisionFigures(**shared, covered=_range_coverage(table, decisions, groups))
    stated, labels = prevalences or {}, []
    if isinstance(table, ClassificationPredictions):
        targets = np.full(len(table), -1) if table.targets is None else table.targets
        known, right = targets >= 0, table.indices == targets
        answered = known & ~table.abstained
        shared["accuracy"] = estimate_rate(right[known], _select(groups, known))
        shared["accuracy_answered"] = estimate_rate(right[answered], _select(groups, answered))
        if decisions.cuts:
            sets = table.probabilities.astype(np.float64) >= np.array(decisions.cuts)
            shared["covered"] = estimate_rate(sets[known, targets[known]], _select(groups, known))
            shared["set_size"] = float(sets.sum(1).mean()) if len(sets) else None
        named = (positive,) if positive else table.classes
        for name in named:
            k = table.classes.index(name)
            threshold = decisions.thresholds[0] if decisions.thresholds and name == decisions.positive else None
            fitted = not decisions.chosen or decisions.chosen[0]
            pair, own = (targets[known] == k, table.indices[known] == k), _select(groups, known)
            labels.append(_binary_figures(name, threshold, fitted, *pair, miss_cost, stated.get(name), own))
        total = labels[0].cost if len(named) == 1 else None
        return DecisionFigures(**shared, labels=tuple(labels), cost=total)
    targets = np.full(table.probabilities.shape, np.nan) if table.targets is None else table.targets
    for k, name in enumerate(table.classes):
        known = ~np.isnan(targets[:, k])
        pair = (targets[known, k] >= LABEL_THRESHOLD, table.indicators[known, k])
        threshold = decisions.thresholds[k] if decisions.thresholds else LABEL_THRESHOLD
        fitted = not decisions.chosen or decisions.chosen[k]
        own = _select(groups, known)
        labels.append(_binary_figures(name, threshold, fitted, *pair, miss_cost, stated.get(name), own))
    return DecisionFigures(**shared, labels=tuple(labels), cost=_sum_rates([one.cost for one in labels]))


def _select(groups: np.ndarray | None, mask: np.ndarray) -> np.ndarray | None:
    return None if groups is None else groups[mask]


def _binary_figures(
    name: str,
    threshold: float | None,
    is_fitted: bool,
    positive: Bool[np.ndarray, " m"],
    predicted: Bool[np.ndarray, " m"],
    miss_cost: float,
    stated: float | None,
    groups: Shaped[np.ndarray, " m"] | None,
) -> BinaryFigures:
    positives, n = int(positive.sum()), len(positive)
    sensitivity = estimate_rate(predicted[positive], _select(groups, positive))
    specificity = estimate_rate(~predicted[~positive], _select(groups, ~positive))
    prevalence = stated if stated is not None else positives / n if 0 < positives < n else None
    predictive, cost = PredictiveValues(None, None), None
    if sensitivity is not None and specificity is not None and prevalence is not None:
        predictive = predictive_values(sensitivity, specificity, prevalence)
        cost = _sum_rates(
            [
                _scale_complement(sensitivity, COST_UNIT * prevalence * miss_cost),
                _scale_complement(specificity, COST_UNIT * (1 - prevalence)),
            ]
        )
    return BinaryFigures(
        name=name,
        threshold=threshold,
        is_fitted=is_fitted,
        positives=positives,
        negatives=n - positives,
        misses=int((positive & ~predicted).sum()),
        false_alarms=int((~positive & predicted).sum()),
        sensitivity=sensitivity,
        specificity=specificity,
        prevalence=prevalence,
        predictive=predictive,
        cost=cost,
    )


def estimate_rate(mask: Bool[np.ndarray, " n"], groups: Shaped[np.ndarray, " n"] | None = None) -> Rate | None:
    """The fraction of True with its 95 % interval, see `proportion_interval`; None without any."""
    return Rate(float(mask.mean()), proportion_interval(mask, groups)) if len(mask) else None


def _scale_complement(rate: Rate, factor: float) -> Rate:
    """The error rate of a rate of right answers, times a factor."""
    low, high = rate.interval
    return Rate(factor * (1 - rate.value), Interval(factor * (1 - high), factor * (1 - low)))


def _sum_rates(rates: Sequence[Rate | None]) -> Rate | None:
    """The sum of independent rates, without those that are not known; None if none is.

    Source: Zou and Donner 2008, "Construction of confidence limits about effect measures", MOVER.
    """
    known = [one for one in rates if one is not None]
    if not known:
        return None
    value = sum(one.value for one in known)
    below = sqrt(sum((one.value - one.interval.low) ** 2 for one in known))
    above = sqrt(sum((one.interval.high - one.value) ** 2 for one in known))
    return Rate(value, Interval(value - below, value + above))


def _range_coverage(
    table: RegressionPredictions, decisions: Decisions, groups: Shaped[np.ndarray, " n"] | None
) -> Rate | None:
    if not decisions.reach or table.targets is None:
        return None
    known = table.known_mask
    within = np.abs(table.values.astype(np.float64) - table.targets) <= np.array(decisions.reach)
    numbers = np.arange(len(table)) if groups is None else groups  # the columns of one image are alike
    several = groups is not None or known.shape[1] > 1
    return estimate_rate(within[known], np.repeat(numbers[:, None], known.shape[1], 1)[known] if several else None)


def _band_figures(result: BandResult, groups: Shaped[np.ndarray, " n"] | None) -> BandFigures:
    inside, outside = ((result.verdicts == which) for which in (INSIDE, OUTSIDE))
    low, high = (float(end) if np.isfinite(end) else None for end in result.band)
    known_inside, known_outside = inside & result.known, outside & result.known
    return BandFigures(
        name=result.name,
        low=low,
        high=high,
        inside=int(inside.sum()),
        outside=int(outside.sum()),
        unsure=int((result.verdicts == UNSURE_VERDICT).sum()),
        wrongly_inside=estimate_rate(~result.is_inside[known_inside], _select(groups, known_inside)),
        wrongly_outside=estimate_rate(result.is_inside[known_outside], _select(groups, known_outside)),
    )


def _to_plain(value: Any) -> Any:
    """Rates as {value, low, high}; what is None is left out."""
    if isinstance(value, Rate):
        return {"value": value.value, "low": value.interval.low, "high": value.interval.high}
    if isinstance(value, PredictiveValues):
        return {name: _to_plain(one) for name, one in value._asdict().items() if one is not None}
    if isinstance(value, tuple):
        return [_to_plain(one) for one in value]
    if isinstance(value, BinaryFigures | BandFigures | DecisionFigures):
        return {name: _to_plain(one) for name, one in vars(value).items() if one is not None}
    return value
