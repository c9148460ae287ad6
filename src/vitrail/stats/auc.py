"""Area under the ROC curve with its score interval, and DeLong's variance by the influence of each image.

The placement of an image is the fraction of images of the other kind that it is ranked correctly against; ties count
half. The area is the mean placement, and the deviation of a placement from it is the image's influence on the area. The
variance of an area, of a mean of areas or of a difference is the sum of squared influences, of their means or
differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from jaxtyping import Bool, Float64, Num, Shaped

from ..errors import UsageError
from .intervals import Interval


@dataclass(frozen=True)
class RocAuc:
    """An area under the ROC curve with what its interval needs."""

    value: float
    influence: Float64[np.ndarray, " g"]
    """Of every image, or of every group; NaN with fewer than two positives or negatives."""
    weights: Float64[np.ndarray, " g"]
    """Change of the area if all placements of an image, or of a group, changed by 1; only counts decide them."""
    positives: int
    """Number of positive images, or of groups with one."""
    negatives: int
    score_variance: tuple[float, float]
    """(a, b) in the variance A (1 - A) (a + b ((1 - A) / (2 - A) + A / (1 + A))) of a candidate area A."""

    def interval(self, level: float = 0.95) -> Interval:
        """Confidence interval: score interval, the candidate areas within z of their deviations of this one.

        It depends on the area and the counts alone, so that a better ranking never has a lower bound, and covers with
        few positives, where DeLong's variance is too small. Images of a group count as if they were ranked rightly or
        wrongly together, as in `intervals.proportion_interval` and for the same reason.

        Source: Newcombe 2006, "Confidence intervals for an effect size measure based on the Mann-Whitney statistic,
        part 2", method 5; groups are ours.
        """
        return score_interval(self.value, self.score_variance, level)


def roc_auc_with_influence(
    positive: Bool[np.ndarray, " n"],
    scores: Num[np.ndarray, " n"],
    known: Bool[np.ndarray, " n"] | None = None,
    groups: Shaped[np.ndarray, " n"] | None = None,
) -> RocAuc:
    """Compute the area and the influence of each image in O(n log n).

    Args:
        positive: mask of the images with the label.
        known: mask of the images that count; the others have influence 0.
        groups: group of each image, such as its patient, where images of one group may be correlated.

    Raises:
        UsageError: no positives or no negatives, or a score that is not finite.

    Source: DeLong, DeLong and Clarke-Pearson 1988, Biometrics 44; by ranks as in Sun and Xu 2014, IEEE Signal
    Processing Letters 21; clusters as in Obuchowski 1997, Biometrics 53, except that the finite-sample factor of the
    cross term is the geometric mean of those of the two kinds.
    """
    there = np.ones(len(positive), bool) if known is None else known
    ups, downs = np.flatnonzero(there & positive), np.flatnonzero(there & ~positive)
    if not (len(ups) and len(downs)):
        raise UsageError(
            f"An area under the ROC curve needs pictures with and without the label. Got {len(ups)} with it of "
            f"{len(ups) + len(downs)}."
        )
    if bad := int((~np.isfinite(scores[there])).sum()):
        raise UsageError(f"Scores must be finite numbers. Got {bad} that are not.")
    above, below = _placements(scores[ups].astype(np.float64), scores[downs].astype(np.float64))
    names = np.arange(len(positive)) if groups is None else np.unique(groups, return_inverse=True)[1]
    value = float(above.mean())
    influence, weights = np.zeros((2, int(names.max()) + 1))
    kinds = []
    for rows, placements in ((ups, above), (downs, below)):
        members = len(np.unique(names[rows]))
        steps = (placements - value) / len(rows) * np.sqrt(members / (members - 1) if members > 1 else np.nan)
        influence += np.bincount(names[rows], steps, len(influence))
        weights += np.bincount(names[rows], minlength=len(weights)) / len(rows)
        kinds.append(members)
    positives, negatives = kinds
    design_effect = float(np.square(weights).sum()) / (1 / len(ups) + 1 / len(downs))
    return RocAuc(value, influence, weights, positives, negatives, score_variance(len(ups), len(downs), design_effect))


def mean_roc_auc(areas: Sequence[RocAuc], exclusive: bool = False) -> RocAuc:
    """Mean of areas of the same images, as over labels; its counts are the smallest of theirs.

    Areas of labels count as if an image that is ranked wrongly for one label were so for all: how far errors fall
    together cannot be seen where there are none. An area with fewer than two positives or negatives has no known
    influences and is taken to be as uncertain as the others.

    Args:
        exclusive: of the classes of one softmax, each against the others. An image that is misjudged then lowers the
            areas of two classes, that of its own more than that of the other.
    """
    sure = [one for one in areas if not np.isnan(one.influence).any()] or list(areas)
    K, weights = len(areas), np.mean([one.weights for one in areas], axis=0)
    independent = sum(float(np.square(one.weights).sum()) for one in areas) / K**2
    factor = K * K / ((K - 1) ** 2 + 1) if exclusive else float(np.square(weights).sum()) / independent
    a, b = (factor * sum(column) / K**2 for column in zip(*(one.score_variance for one in areas), strict=True))
    return RocAuc(
        value=float(np.mean([one.value for one in areas])),
        influence=np.mean([one.influence for one in sure], axis=0),
        weights=weights,
        positives=min(one.positives for one in sure),
        negatives=min(one.negatives for one in sure),
        score_variance=(a, b),
    )


def roc_auc_difference(first: RocAuc, second: RocAuc, level: float = 0.95) -> tuple[float, Interval, float]:
    """DeLong's test: first area minus second on the same images, its normal interval, and the two-sided p-value."""
    gap = first.value - second.value
    deviation = float(np.sqrt(np.square(first.influence - second.influence).sum()))
    reach = _z_value(level) * deviation
    p = 2 * NormalDist().cdf(-abs(gap) / deviation) if deviation else float(gap == 0)
    return gap, Interval(gap - reach, gap + reach), p


def _placements(ups: np.ndarray, downs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each positive the fraction of negatives below it, of each negative the fraction of positives above it."""
    from scipy.stats import rankdata

    ranks = rankdata(np.concatenate([ups, downs]))  # the mean rank where scores are equal
    above = (ranks[: len(ups)] - rankdata(ups)) / len(downs)
    return above, 1 - (ranks[len(ups) :] - rankdata(downs)) / len(ups)


def _z_value(level: float) -> float:
    return NormalDist().inv_cdf((1 + level) / 2)


def score_variance(positives: int, negatives: int, design_effect: float = 1.0) -> tuple[float, float]:
    """`RocAuc.score_variance` of these counts, larger by as much as groups weigh more than images."""
    pairs = positives * negatives
    return design_effect / pairs, design_effect * ((positives + negatives) / 2 - 1) / pairs


def score_interval(value: float, variance: tuple[float, float], level: float = 0.95) -> Interval:
    """The candidate areas within z deviations of this one, by the deviation of the candidate."""
    from scipy.optimize import brentq

    (a, b), z = variance, _z_value(level)

    def beyond(candidate: float) -> float:
        spread = a + b * ((1 - candidate) / (2 - candidate) + candidate / (1 + candidate))
        return (value - candidate) ** 2 - z * z * candidate * (1 - candidate) * spread

    # above 0 at both ends, below 0 at the value, but 0 where the value is an end
    low = 0.0 if value == 0 else float(brentq(beyond, 0.0, min(value, 1 - 1e-12)))
    high = 1.0 if value == 1 else float(brentq(beyond, max(value, 1e-12), 1.0))
    return Interval(low, high)
