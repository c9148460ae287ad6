"""Curves of one label, or of one class against the others: ROC, precision-recall, net benefit and cost, with bands.

Every band is in closed form, from the counts below each threshold. The pointwise band holds at each place of the
horizontal axis by itself, the simultaneous band at all of them together. With groups, such as patients, images count as
`effective_count` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64, Shaped

from ..formatting import format_count
from ..stats.intervals import Interval, effective_count, wilson_interval_of_share
from ..stats.predictive import Rate, rate_from_odds, rate_ratio
from .thresholds import MIN_PER_SIDE, RocPoints, ThresholdRule, compute_roc_points, find_best_threshold

Z = 1.959963984540054
"""Normal quantile of a 95 % interval."""
EQUAL_LEVELS = (
    (5, 0.0038), (10, 0.0023), (20, 0.00145), (50, 0.00086), (100, 0.00062), (200, 0.00046), (500, 0.00036),
    (1000, 0.0003), (5000, 0.00024), (20000, 0.00016),
)  # fmt: skip
"""(n, miss rate of the exact interval at each threshold) for which the intervals of a distribution function of n images
miss it anywhere in one case of sixty; simulated by `benchmarks/curve_coverage.py --levels`."""
MIN_UNITS = 10
"""Images or groups, of either kind, that a curve needs."""
DECISION_THRESHOLDS = tuple(float(np.round(0.01 * k, 2)) for k in range(1, 100))
"""Threshold probabilities of a decision curve."""
COST_PLACES = 49
"""Points of a cost curve."""


@dataclass(frozen=True, eq=False)
class CurveSample:
    """The m known images of one label, or of one class against the others."""

    positive: Bool[np.ndarray, " m"]
    scores: Float64[np.ndarray, " m"]
    groups: Shaped[np.ndarray, " m"] | None = None
    """Group of each image, such as its patient."""

    def points(self) -> RocPoints:
        """The points of its ROC curve."""
        return compute_roc_points(self.positive, self.scores)

    def counts(self) -> tuple[float, float, float]:
        """Independent positives, negatives, and images of both kinds."""
        rows = (self.positive, ~self.positive, np.ones(len(self.positive), bool))
        if self.groups is None:
            return tuple(float(mask.sum()) for mask in rows)  # type: ignore[return-value]
        return tuple(effective_count(self.groups[mask]) for mask in rows)  # type: ignore[return-value]

    def unsupported_reason(self, name: str) -> str:
        """Why these images support no curve, as a sentence; empty if they do."""
        positives, negatives = int(self.positive.sum()), int((~self.positive).sum())
        if min(positives, negatives) < MIN_PER_SIDE:
            return (
                f"A curve needs {MIN_PER_SIDE} pictures with {name} and {MIN_PER_SIDE} without it; there are "
                f"{positives:,} and {negatives:,}."
            )
        if self.groups is not None and min(self.counts()) < MIN_UNITS:
            with_it, without = (len(np.unique(self.groups[mask])) for mask in (self.positive, ~self.positive))
            return (
                f"The pictures with {name} come from {format_count(with_it, 'group')} and those without it from "
                f"{without:,}, which count as fewer than {MIN_UNITS} independent ones on a side: no band would hold."
            )
        return ""


@dataclass(frozen=True, eq=False, kw_only=True)
class CurveBand:
    """A curve with its 95 % bands, as values at increasing places x of the horizontal axis."""

    x: Float64[np.ndarray, " m"]
    y: Float64[np.ndarray, " m"]
    low: Float64[np.ndarray, " m"]
    high: Float64[np.ndarray, " m"]
    """The pointwise band."""
    all_low: Float64[np.ndarray, " m"]
    all_high: Float64[np.ndarray, " m"]
    """The simultaneous band."""


# -- ROC and precision-recall curves


def roc_band(sample: CurveSample, x: Float[np.ndarray, " m"]) -> CurveBand:
    """Sensitivity at fixed false positive rates x.

    Pointwise: the threshold that gives a false positive rate is uncertain by the negatives, and the sensitivity above a
    threshold by the positives; MOVER joins the two. Left of about four divided by the number of negatives the threshold
    may lie above all of them, and the band begins at 0.

    Simultaneous: exact intervals of both rates at all thresholds, at the level where all of them hold together.

    Source: Zou and Donner 2008 for MOVER; Campbell 1994, "Advances in statistical methodology for the evaluation of
    diagnostic and laboratory tests", for joint rectangles; equal local levels as in Aldor-Noiman et al. 2013, "The
    power to see", in place of Kolmogorov's fixed width.
    """
    points, (positives, negatives, _) = sample.points(), sample.counts()
    false_rates, hit_rates = 1 - points.specificity, points.sensitivity
    y, low, high = _vertical_interval(false_rates, hit_rates, negatives, positives, x)
    first, last = _consistent_thresholds(false_rates, negatives, x)
    all_low, all_high = _joint_interval(hit_rates[first], positives)[0], _joint_interval(hit_rates[last], positives)[1]
    return CurveBand(x=x, y=y, low=low, high=high, all_low=all_low, all_high=all_high)


def precision_recall_band(sample: CurveSample, x: Float[np.ndarray, " m"]) -> CurveBand:
    """Precision at fixed recalls x, strictly above 0.

    Precision is Bayes' formula of the prevalence and of the ratio of recall and false positive rate; the interval of
    the latter is that of a ROC curve read from the other side, and MOVER-R joins it with Wilson's of the prevalence.
    The value joins two thresholds along the ROC curve and not by a straight line.

    Source: Davis and Goadrich 2006, "The relationship between precision-recall and ROC curves", for the interpolation;
    the bands are ours, from those of `roc_band`.
    """
    points, (positives, negatives, images) = sample.points(), sample.counts()
    false_rates, hit_rates = 1 - points.specificity, points.sensitivity
    prevalence = float(sample.positive.mean())
    p_low, p_high = (float(end[0]) for end in _wilson(np.array([prevalence]), images))
    # the ROC curve with both axes turned round: specificity at a fixed rate of misses
    flipped = _vertical_interval((1 - hit_rates)[::-1], (1 - false_rates)[::-1], positives, negatives, 1 - x)
    specificity, s_low, s_high = flipped
    odds, odds_low, odds_high = (share / (1 - share) for share in (prevalence, p_low, p_high))
    rates = []
    for recall, value, low, high in zip(x, specificity, s_low, s_high, strict=True):
        top = Rate(recall * odds, Interval(recall * odds_low, recall * odds_high))
        ratio = rate_ratio(top, Rate(1 - value, Interval(1 - high, 1 - low)))
        assert ratio is not None  # the recall is above 0
        rates.append(rate_from_odds(ratio, 1.0))
    first, last = _consistent_thresholds(hit_rates, positives, x)
    f_low = _joint_interval(false_rates[first], negatives)[0]
    f_high = _joint_interval(false_rates[last], negatives)[1]
    joint_low, joint_high = (float(end[0]) for end in _exact_interval(np.array([prevalence]), images, 0.05 / 3))
    return CurveBand(
        x=x,
        y=np.array([one.value for one in rates]),
        low=np.array([one.interval.low for one in rates]),
        high=np.array([one.interval.high for one in rates]),
        all_low=joint_low * x / (joint_low * x + (1 - joint_low) * f_high),
        all_high=joint_high * x / (joint_high * x + (1 - joint_high) * f_low),
    )


def sensitivity_at(sample: CurveSample, specificity: float) -> Rate:
    """Sensitivity at the threshold with this specificity, which these images choose too."""
    points, (positives, negatives, _) = sample.points(), sample.counts()
    parts = (1 - points.specificity, points.sensitivity, negatives, positives, np.array([1 - specificity]))
    value, low, high = (float(one[0]) for one in _vertical_interval(*parts))
    return Rate(value, Interval(low, high))


def specificity_at(sample: CurveSample, sensitivity: float) -> Rate:
    """Specificity at the threshold with this sensitivity, which these images choose too."""
    return sensitivity_at(CurveSample(~sample.positive, 1 - sample.scores, sample.groups), sensitivity)


def _vertical_interval(
    across: np.ndarray, up: np.ndarray, num_across: float, num_up: float, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value and MOVER interval of a rising curve at x.

    Args:
        across, up: rates at falling thresholds, from 0 to 1.
        num_across, num_up: independent images that they are fractions of.
    """
    reach = Z * np.sqrt(x * (1 - x) / num_across)
    y = _curve_at(across, up, x)
    left = np.where(x - reach > 0, _curve_at(across, up, np.clip(x - reach, 0, 1)), 0.0)
    right = np.where(x + reach < 1, _curve_at(across, up, np.clip(x + reach, 0, 1)), 1.0)
    low, high = _wilson(y, num_up)
    low = np.maximum(0.0, y - np.hypot(y - left, y - low))
    high = np.minimum(1.0, y + np.hypot(right - y, high - y))
    return y, low, high


def _curve_at(across: np.ndarray, up: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The curve at x, on straight lines between its points; the upper end where it is vertical."""
    before = np.clip(np.searchsorted(across, x + 1e-12, side="right") - 1, 0, len(across) - 2)
    run = across[before + 1] - across[before]
    part = np.divide(x - across[before], run, out=np.ones_like(x), where=run > 0)  # 0 at the end, if it is vertical
    return up[before] + np.clip(part, 0, 1) * (up[before + 1] - up[before])


def _consistent_thresholds(shares: np.ndarray, n: float, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each place x the first and the last threshold whose `_joint_interval` holds it; shares rise."""
    from scipy.special import betainc

    miss, end = _joint_level(n), len(shares)

    def is_high_enough(index: np.ndarray) -> np.ndarray:
        """Whether the upper end of its interval reaches x."""
        hits = np.minimum(shares[index] * n, n - 1e-9)
        return np.asarray((betainc(hits + 1, n - hits, x) <= 1 - miss / 2) | (shares[index] >= 1))

    def is_too_high(index: np.ndarray) -> np.ndarray:
        """Whether the lower end of its interval is above x, or it is beyond the last threshold."""
        hits = np.maximum(shares[np.minimum(index, end - 1)] * n, 1e-9)
        return np.asarray((index >= end) | ((betainc(hits, n - hits + 1, x) < miss / 2) & (hits > 1e-6)))

    return _bisect(is_high_enough, np.zeros(len(x), int), end - 1), _bisect(is_too_high, np.zeros(len(x), int), end) - 1


def _bisect(holds: Callable[[np.ndarray], np.ndarray], low: np.ndarray, top: int) -> np.ndarray:
    """The first index of low..top at which a condition holds that then holds for all above; top if none is below."""
    high = np.full_like(low, top)
    while (low < high).any():
        middle = (low + high) // 2
        good = holds(middle)
        low, high = np.where(good | (low == high), low, middle + 1), np.where(good, middle, high)
    return low


def _wilson(shares: np.ndarray, n: float) -> tuple[np.ndarray, np.ndarray]:
    """`wilson_interval_of_share` of many."""
    low, high = np.array([wilson_interval_of_share(one, n) for one in shares.tolist()]).reshape(-1, 2).T
    return low, high


def _joint_interval(shares: np.ndarray, n: float) -> tuple[np.ndarray, np.ndarray]:
    """Intervals of the rates at all thresholds that hold together in 59 cases of 60."""
    return _exact_interval(shares, n, _joint_level(n))


def _joint_level(n: float) -> float:
    sizes, levels = np.log(np.array(EQUAL_LEVELS)).T
    return float(np.exp(np.interp(np.log(n), sizes, levels)))


def _exact_interval(shares: np.ndarray, n: float, miss: float) -> tuple[np.ndarray, np.ndarray]:
    """Clopper and Pearson's intervals, also for an effective count that is not whole."""
    from scipy.special import betaincinv

    hits = np.clip(shares * n, 0, n)
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1e-9), n - hits + 1, miss / 2), 0.0)
    high = np.where(hits < n, betaincinv(hits + 1, np.maximum(n - hits, 1e-9), 1 - miss / 2), 1.0)
    return low, high


# -- Net benefit


@dataclass(frozen=True, eq=False, kw_only=True)
class DecisionCurve:
    """Net benefit of acting on a probability, at each threshold probability, against acting on all and on none."""

    model: CurveBand
    """Net benefit of the model: true positives less false positives times the odds of the threshold, per image."""
    act_on_all: Float64[np.ndarray, " m"]
    """Net benefit of acting on all images; of acting on none it is 0."""
    gain: CurveBand
    """Net benefit of the model less that of acting on all."""
    prevalence: float

    def helpful_ranges(self, certain: bool = False) -> list[tuple[float, float]]:
        """Ranges of thresholds where the model is better than acting on all and on none.

        Args:
            certain: where both simultaneous bands say so.
        """
        if certain:
            better = (self.model.all_low > 0) & (self.gain.all_low > 0)
        else:
            better = (self.model.y > 1e-12) & (self.gain.y > 1e-12)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], better, [False]]).astype(int)))
        return [(float(self.model.x[a]), float(self.model.x[b - 1])) for a, b in edges.reshape(-1, 2)]


def decision_curve(sample: CurveSample, x: Sequence[float] = DECISION_THRESHOLDS) -> DecisionCurve:
    """Compute the decision curve at threshold probabilities x, strictly between 0 and 1; scores are probabilities.

    Shares of true and of false positives are two of the shares of one multinomial; MOVER joins their exact intervals
    with its correlation. Wilson's are too narrow among the studies that have enough of a rare label. The simultaneous
    band takes exact intervals of prevalence, sensitivity and false positive rate that hold together.

    Source: Vickers and Elkin 2006, "Decision curve analysis: a novel method for evaluating prediction models"; Newcombe
    1998, "Improved confidence intervals for the difference between binomial proportions based on paired data", for the
    correlation.
    """
    thresholds = np.asarray(x, np.float64)
    odds = thresholds / (1 - thresholds)
    positives, negatives, images = sample.counts()
    rates = []
    for mask in (sample.positive, ~sample.positive):
        ordered = np.sort(sample.scores[mask])
        rates.append(1 - np.searchsorted(ordered, thresholds - 1e-7, side="left") / len(ordered))
    hits, alarms, share = rates[0], rates[1], float(sample.positive.mean())
    value, low, high = _weighted_difference(share * hits, (1 - share) * alarms, odds, images)
    gain, gain_low, gain_high = _weighted_difference(share * (1 - hits), (1 - share) * (1 - alarms), odds, images)
    t_low, t_high = _joint_interval(hits, positives)
    f_low, f_high = _joint_interval(alarms, negatives)
    p_low, p_high = (float(end[0]) for end in _exact_interval(np.array([share]), images, 0.05 / 3))
    model = CurveBand(
        x=thresholds, y=value, low=low, high=high,
        all_low=p_low * t_low - (1 - p_low) * odds * f_high, all_high=p_high * t_high - (1 - p_high) * odds * f_low,
    )  # fmt: skip
    against_all = CurveBand(
        x=thresholds, y=-gain, low=-gain_high, high=-gain_low,
        all_low=(1 - p_high) * odds * (1 - f_high) - p_high * (1 - t_low),
        all_high=(1 - p_low) * odds * (1 - f_low) - p_low * (1 - t_high),
    )  # fmt: skip
    return DecisionCurve(model=model, act_on_all=share - (1 - share) * odds, gain=against_all, prevalence=share)


def _weighted_difference(
    first: np.ndarray, second: np.ndarray, weights: np.ndarray, n: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value and MOVER interval of first - weights * second, two shares of the same n images that exclude each other."""
    value = first - weights * second
    (a_low, a_high), (b_low, b_high) = (_exact_interval(share, n, 0.05) for share in (first, second))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = np.nan_to_num(np.sqrt(first * second / ((1 - first) * (1 - second))), posinf=1.0)
    ends = []
    for a, b in ((first - a_low, b_high - second), (a_high - first, second - b_low)):
        ends.append(np.sqrt(a**2 + (weights * b) ** 2 + 2 * correlation * a * weights * b))
    return value, value - ends[0], value + ends[1]


# -- Cost


def cost_curve(sample: CurveSample, basis: CurveSample) -> CurveBand:
    """Normalised expected cost at each probability-cost, with thresholds that other images have chosen.

    Places x run from 0, where only false alarms cost, to 1, where only misses do: the share of misses in the cost of a
    model that is always wrong. The cost is x times the miss rate plus 1 - x times the false positive rate, so that the
    cheaper of answering always and never costs the smaller of x and 1 - x. The simultaneous ends are not computed and
    equal the pointwise ones.

    Args:
        basis: the validation images, on which the cheapest threshold of each place is chosen.

    Source: Drummond and Holte 2006, "Cost curves: an improved method for visualizing classifier performance".
    """
    places = np.arange(1, COST_PLACES + 1) / (COST_PLACES + 1)
    points = basis.points()
    odds = float((~basis.positive).sum() / basis.positive.sum())
    chosen = [find_best_threshold(ThresholdRule("cost", x / (1 - x) * odds), points) for x in places.tolist()]
    rates = [(sample.scores >= one) for one in chosen]
    misses = np.array([1 - one[sample.positive].mean() for one in rates])
    alarms = np.array([one[~sample.positive].mean() for one in rates])
    return cost_band(misses, alarms, sample, places)


def cost_band(
    misses: Float64[np.ndarray, " m"], alarms: Float64[np.ndarray, " m"], sample: CurveSample, x: np.ndarray
) -> CurveBand:
    """Normalised expected cost of given miss and false positive rates; MOVER joins their Wilson intervals."""
    positives, negatives, _ = sample.counts()
    (m_low, m_high), (f_low, f_high) = _wilson(misses, positives), _wilson(alarms, negatives)
    y = x * misses + (1 - x) * alarms
    low = y - np.hypot(x * (misses - m_low), (1 - x) * (alarms - f_low))
    high = y + np.hypot(x * (m_high - misses), (1 - x) * (f_high - alarms))
    return CurveBand(x=x, y=y, low=low, high=high, all_low=low, all_high=high)
