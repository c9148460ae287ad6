"""Positive and negative predictive values at a given prevalence, with intervals."""

from __future__ import annotations

from math import inf, sqrt
from typing import NamedTuple

from ..errors import UsageError
from .intervals import Interval


class Rate(NamedTuple):
    """A rate with its interval."""

    value: float
    interval: Interval


class PredictiveValues(NamedTuple):
    """Positive and negative predictive value; None where no such prediction is ever made."""

    positive: Rate | None
    negative: Rate | None


def predictive_values(sensitivity: Rate, specificity: Rate, prevalence: float) -> PredictiveValues:
    """Predictive values by Bayes' formula.

    The intervals come from those of the two likelihood ratios, which MOVER-R builds from the intervals of the two
    rates; these may be Wilson's or those of a bootstrap over groups. The two rates are taken to be independent, and the
    prevalence to be exact.

    Args:
        prevalence: fraction of positives where the model is used, strictly between 0 and 1.

    Raises:
        UsageError: a prevalence outside 0..1, or at its ends.

    Source: Donner and Zou 2012, "Closed-form confidence intervals for functions of the normal mean and standard
    deviation", section 3; Newcombe 2016, "MOVER-R confidence intervals for ratios and products of two independently
    estimated quantities".
    """
    if not 0 < prevalence < 1:
        raise UsageError(f"A prevalence must lie between 0 and 1, for example 0.05. Got {prevalence}.")
    odds = prevalence / (1 - prevalence)
    positive_ratio, negative_ratio = likelihood_ratios(sensitivity, specificity)
    return PredictiveValues(
        positive=None if positive_ratio is None else rate_from_odds(positive_ratio, odds),
        negative=None if negative_ratio is None else _complement(rate_from_odds(negative_ratio, odds)),
    )


class LikelihoodRatios(NamedTuple):
    """Factors by which a prediction changes the odds; None where no such prediction is ever made."""

    positive: Rate | None
    """Sensitivity / (1 - specificity), above 1; infinite without a false alarm."""
    negative: Rate | None
    """(1 - sensitivity) / specificity, below 1."""


def likelihood_ratios(sensitivity: Rate, specificity: Rate) -> LikelihoodRatios:
    """Likelihood ratios of a positive and of a negative prediction, with the intervals of `predictive_values`."""
    return LikelihoodRatios(
        rate_ratio(sensitivity, _complement(specificity)), rate_ratio(_complement(sensitivity), specificity)
    )


def _complement(rate: Rate) -> Rate:
    return Rate(1 - rate.value, Interval(1 - rate.interval.high, 1 - rate.interval.low))


def rate_ratio(top: Rate, bottom: Rate) -> Rate | None:
    """Ratio of two rates, infinite where the bottom one is 0; None where both are. Source: MOVER-R."""
    (a, (a_low, a_high)), (b, (b_low, b_high)) = top, bottom
    if a <= 0 and b <= 0:
        return None
    rise, fall = a_low * (2 * a - a_low), b_high * (2 * b - b_high)
    below = a * b + sqrt(max(0.0, (a * b) ** 2 - rise * fall))
    low = rise / below if below > 0 else 0.0
    rise, fall = a_high * (2 * a - a_high), b_low * (2 * b - b_low)
    high = (a * b + sqrt(max(0.0, (a * b) ** 2 - rise * fall))) / fall if fall > 0 else inf
    return Rate(a / b if b > 0 else inf, Interval(low, high))


def rate_from_odds(ratio: Rate, odds: float) -> Rate:
    """Posterior probability: prior odds times a likelihood ratio, as a rate."""
    value, (low, high) = ratio
    return Rate(_odds_to_share(odds * value), Interval(_odds_to_share(odds * low), _odds_to_share(odds * high)))


def _odds_to_share(odds: float) -> float:
    return 1.0 if odds == inf else odds / (1 + odds)
