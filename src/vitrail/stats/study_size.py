"""How many images a study needs: for an interval of a stated width, or to see a stated difference."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from jaxtyping import Float, Shaped

from .auc import score_interval, score_variance
from .intervals import wilson_interval_of_share

MOST_IMAGES = 10**9
"""A study of more is not proposed."""


def count_for_share(share: float, reach: float) -> int:
    """The fewest independent images of which Wilson's 95 % interval of a share reaches so far to either side.

    Args:
        share: the share that is expected, 0..1.
        reach: half of the interval's width.
    """
    return _fewest(lambda n: _half(wilson_interval_of_share(share, n)) <= reach)


def count_for_roc_auc(area: float, reach: float, prevalence: float, design_effect: float = 1.0) -> int:
    """The fewest images of which the 95 % interval of an area under the ROC curve reaches so far to either side.

    Args:
        area: the area that is expected, 0..1.
        prevalence: share of the images that are positive.
        design_effect: how many times larger groups make the variance.
    """
    return _fewest(lambda n: roc_auc_reach(area, n, prevalence, design_effect) <= reach)


def roc_auc_reach(area: float, images: int, prevalence: float, design_effect: float = 1.0) -> float:
    """Half the width of the interval that `RocAuc.interval` gives for so many images; infinite without both kinds."""
    positives = round(images * prevalence)
    negatives = images - positives
    if not (positives and negatives):
        return math.inf
    return _half(score_interval(area, score_variance(positives, negatives, design_effect)))


def count_for_difference(difference: float, discordance: float, power: float = 0.8, design_effect: float = 1.0) -> int:
    """Images on which two models are compared, so that a true difference in accuracy is significant with this power.

    The test is two-sided at 5 %, on the same images: only those count that one model answers rightly and the other
    wrongly.

    Args:
        difference: of the accuracies.
        discordance: share of the images on which exactly one of the models is right, at least the difference.

    Source: Connor 1987, "Sample size for testing differences in proportions for the paired-sample design",
    Biometrics 43.
    """
    certainty, reached = NormalDist().inv_cdf(0.975), NormalDist().inv_cdf(power)
    spread = math.sqrt(max(discordance - difference**2, 0.0))
    count = ((certainty * math.sqrt(discordance) + reached * spread) / difference) ** 2
    return math.ceil(count * design_effect)


def mean_design_effect(values: Float[np.ndarray, " n"], groups: Shaped[np.ndarray, " n"]) -> float:
    """How many times larger the variance of a mean is because images of a group are alike; 1 or more.

    1 where the values do not differ, from which nothing follows.

    Source: Kish 1965, "Survey sampling", section 5.4; the variance between clusters as of their sums.
    """
    apart = values - values.mean()
    alone = float(np.square(apart).sum())
    if alone == 0:
        return 1.0
    numbers = np.unique(groups, return_inverse=True)[1]
    sums = np.bincount(numbers, apart)
    return max(1.0, float(np.square(sums).sum()) * len(sums) / max(len(sums) - 1, 1) / alone)


def _fewest(is_enough: Callable[[int], bool]) -> int:
    """The smallest count that is enough, where every larger one is."""
    high = 2
    while not is_enough(high) and high < MOST_IMAGES:
        high *= 2
    low = high // 2
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _half(interval: tuple[float, float]) -> float:
    return (interval[1] - interval[0]) / 2
