"""Calibration: temperature scaling, reliability curves, error, slope, target scaling and risk-coverage curves.

A temperature divides the logits of every image: above 1 it lowers the confidence of a model, below 1 it raises it. It
is fitted on validation images, stored in the bundle, and applied by every interface. It never changes the most probable
class, and it never moves the probability of a label across 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Shaped

from ..data.source import Task
from ..errors import DamagedFileError, UsageError
from ..formatting import format_count
from ..stats.intervals import Interval, effective_count, proportion_interval
from ..stats.predictive import Rate

MIN_IMAGES = 100
"""Validation images that a temperature needs, and held-out images that a calibration error needs; for the temperature
of a label at least 10 of them with it and 10 without."""
MIN_IMAGES_PER_SIDE = 10
LOG_TEMPERATURE_PRIOR_STD = 0.5
"""Standard deviation of the normal prior on log(temperature), worth about ten images: with many images the data decide,
and a few images that are all correct cannot drive the temperature to 0."""
TEMPERATURE_RANGE = (0.05, 20.0)
NUM_BINS = 15
MIN_IMAGES_PER_BIN = 20
"""Images in a bin of a calibration error: of one image the rate is 0 or 1, which chance explains always."""
MAX_NEWTON_STEPS = 100


def fit_temperature(
    task: Task,
    outputs: Float[np.ndarray, "n K"],
    targets: Shaped[np.ndarray, " n *K"],
    min_images: int = MIN_IMAGES,
) -> tuple[float, ...]:
    """Fit temperature scaling: one value for all classes of a softmax, or one for each label; empty if none is fitted.

    The temperature minimises the negative log-likelihood plus a prior on log(temperature), and is never less likely
    than 1. A label with too few images keeps temperature 1. Empty for regression, and with fewer than `min_images`
    known targets.

    Args:
        outputs: logits of the model.
        targets: class indices [n], -1 where unknown; or labels 0..1 [n, K], NaN where unknown.

    Source: Guo et al. 2017, "On calibration of modern neural networks"; the prior is ours.
    """
    if task == "regression":
        return ()
    from scipy.special import logsumexp

    logits = outputs.astype(np.float64)
    if task == "classification":
        known = targets >= 0
        if known.sum() < min_images:
            return ()
        logits, right = logits[known], logits[known, targets[known]]
        return (_minimize_over_temperature(lambda t: float((logsumexp(logits / t, axis=1) - right / t).sum())),)
    columns = zip(logits.T, targets.T, strict=True)
    values = tuple(_fit_label_temperature(logit, truth, min_images) for logit, truth in columns)
    return values if any(value != 1 for value in values) else ()


def _fit_label_temperature(logits: np.ndarray, targets: np.ndarray, min_images: int) -> float:
    known = ~np.isnan(targets)
    logits, targets = logits[known], targets[known].astype(np.float64)
    positives, negatives = int((targets >= 0.5).sum()), int((targets < 0.5).sum())
    if positives + negatives < min_images or min(positives, negatives) < MIN_IMAGES_PER_SIDE:
        return 1.0
    return _minimize_over_temperature(lambda t: float((np.logaddexp(0, logits / t) - targets * logits / t).sum()))


def _minimize_over_temperature(loss: Callable[[float], float]) -> float:
    """The temperature with the smallest loss, summed over images, plus the penalty of the prior."""
    from scipy.optimize import minimize_scalar

    def penalized_loss(logarithm: float) -> float:
        return loss(float(np.exp(logarithm))) + logarithm**2 / (2 * LOG_TEMPERATURE_PRIOR_STD**2)

    best = minimize_scalar(penalized_loss, bounds=np.log(TEMPERATURE_RANGE), method="bounded", options={"xatol": 1e-6})
    return float(np.exp(best.x)) if best.fun < penalized_loss(0.0) else 1.0


class CalibrationBin(NamedTuple):
    """One bin of a reliability curve: images of similar predicted probability."""

    mean_probability: float
    """Their mean probability."""
    observed_rate: float
    """Fraction of them whose outcome is true."""
    interval: Interval
    """Wilson interval of that fraction, 95 % unless asked otherwise."""
    n: int
    chance_gap: float
    """Standard deviation of observed_rate - mean_probability of a calibrated model."""

    @property
    def gap(self) -> float:
        """|observed rate - mean probability|."""
        return abs(self.observed_rate - self.mean_probability)


def reliability_curve(
    probabilities: Float[np.ndarray, " n"],
    outcomes: Bool[np.ndarray, " n"],
    bins: int = NUM_BINS,
    groups: Shaped[np.ndarray, " n"] | None = None,
    level: float = 0.95,
) -> list[CalibrationBin]:
    """Reliability curve with equal-count bins, in order of probability; fewer bins where there are fewer images.

    Args:
        groups: group of each image, such as its patient, for the intervals.
        level: confidence level of the intervals.
    """
    order = np.argsort(probabilities, kind="stable")
    curve = []
    for rows in np.array_split(order, bins):
        if not len(rows):
            continue
        p, own = probabilities[rows].astype(np.float64), None if groups is None else groups[rows]
        n = len(rows) if own is None else effective_count(own)
        curve.append(
            CalibrationBin(
                mean_probability=float(p.mean()),
                observed_rate=float(outcomes[rows].mean()),
                interval=proportion_interval(outcomes[rows], own, level),
                n=len(rows),
                chance_gap=float(np.sqrt((p * (1 - p)).mean() / n)),
            )
        )
    return curve


def debiased_calibration_error(
    probabilities: Float[np.ndarray, " n"], outcomes: Bool[np.ndarray, " n"], bins: int = NUM_BINS
) -> float:
    """Expected calibration error over equal-count bins, without the bias that chance adds.

    The plain mean of |observed rate - probability| is above 0 even for a calibrated model, and grows as images get
    fewer. Here the sign of a bin's gap comes from one half of its images and its size from the other half, averaged
    over all splits: for a calibrated model the mean of that is 0, and a large gap keeps its size. A negative sum, which
    only chance produces, is returned as 0. Bins hold at least MIN_IMAGES_PER_BIN images; a single bin of all of them
    finds a small gap of one sign, which each of many bins may take for chance, and the larger of both errors counts.

    Raises:
        UsageError: no images.

    Source: own; the bias of the plain estimate is described by Roelofs et al. 2022, "Mitigating bias in calibration
    error estimation", and Kumar et al. 2019, "Verified uncertainty calibration".
    """
    return max(_debiased_error(curve) for curve in _error_curves(probabilities, outcomes, bins, None))


def _error_curves(
    probabilities: np.ndarray, outcomes: np.ndarray, bins: int, groups: np.ndarray | None
) -> list[list[CalibrationBin]]:
    """Reliability curves of several bins and of one, with intervals that hold for both together (Bonferroni)."""
    n = len(probabilities)
    if not n:
        raise UsageError("A calibration error needs at least one picture. Got none.")
    counts = {max(1, min(bins, n // MIN_IMAGES_PER_BIN)), 1}
    return [reliability_curve(probabilities, outcomes, count, groups, 1 - 0.05 / len(counts)) for count in counts]


def _debiased_error(curve: list[CalibrationBin]) -> float:
    from scipy.special import erf

    total = 0.0
    for one in curve:
        gap, std = one.gap, one.chance_gap
        if std > 0:
            density = np.exp(-0.5 * (gap / std) ** 2) / np.sqrt(2 * np.pi)
            gap = gap * float(erf(gap / std / np.sqrt(2))) - 2 * std * float(density)
        total += gap * one.n
    return max(0.0, total / sum(one.n for one in curve))


def _error_interval(curve: list[CalibrationBin], error: float) -> Interval:
    """Interval of the mean gap of the bins by MOVER; below, a bin's gap is as uncertain as its rate, also near 0."""
    n, below, above = sum(one.n for one in curve), 0.0, 0.0
    for one in curve:
        (low, high), p = one.interval, one.mean_probability
        below += (one.n * max(one.observed_rate - low, high - one.observed_rate)) ** 2
        above += (one.n * (max(high - p, p - low) - one.gap)) ** 2
    return Interval(max(0.0, error - below**0.5 / n), min(1.0, error + above**0.5 / n))


class CalibrationSummary(NamedTuple):
    """How far probabilities are from what happens, each with its 95 % interval."""

    error: float
    """`debiased_calibration_error`; with groups, chance counts groups."""
    error_interval: Interval
    in_the_large: float
    """Observed rate minus mean probability: below 0 is overconfident."""
    in_the_large_interval: Interval
    slope: float | None
    """Slope of the outcome on the log-odds of the probability, 1 for a calibrated model; None with fewer than
    MIN_IMAGES_PER_SIDE outcomes of either kind."""
    slope_interval: Interval | None

    def named_figures(self) -> dict[str, tuple[float, Interval]]:
        """The measured figures with their intervals by the names of metrics."""
        figures = {
            "calibration_error": (self.error, self.error_interval),
            "calibration_in_the_large": (self.in_the_large, self.in_the_large_interval),
        }
        if self.slope is not None and self.slope_interval is not None:
            figures["calibration_slope"] = (self.slope, self.slope_interval)
        return figures


def summarize_calibration(
    probabilities: Float[np.ndarray, " n"],
    outcomes: Bool[np.ndarray, " n"],
    groups: Shaped[np.ndarray, " n"] | None = None,
) -> CalibrationSummary:
    """Calibration error, calibration in the large and calibration slope.

    Args:
        groups: group of each image, such as its patient.

    Raises:
        UsageError: no images.

    Source: Cox 1958, "Two further applications of a model for binary regression"; Steyerberg 2019, "Clinical prediction
    models", section 15.3. The mean probability counts as exact.
    """
    curves = _error_curves(probabilities, outcomes, NUM_BINS, groups)
    errors = [_debiased_error(curve) for curve in curves]
    intervals = [_error_interval(curve, error) for curve, error in zip(curves, errors, strict=True)]
    mean = float(probabilities.astype(np.float64).mean())
    slope = fit_calibration_slope(probabilities.astype(np.float64), outcomes, groups)
    return CalibrationSummary(
        error=max(errors),
        error_interval=Interval(max(one.low for one in intervals), max(one.high for one in intervals)),
        in_the_large=float(outcomes.mean()) - mean,
        in_the_large_interval=Interval(*(end - mean for end in proportion_interval(outcomes, groups))),
        slope=None if slope is None else slope[0],
        slope_interval=None if slope is None else slope[1],
    )


def calibration_intercept(
    probabilities: Float[np.ndarray, " n"],
    outcomes: Bool[np.ndarray, " n"],
    groups: Shaped[np.ndarray, " n"] | None = None,
) -> Rate | None:
    """What logistic recalibration adds to the log-odds at slope 1, 0 for a calibrated model, with its 95 % interval.

    The score interval: the shifts under which the number of outcomes lies within 1.96 of its deviations; with groups,
    such as patients, as if all images of a group were alike. None with fewer than MIN_IMAGES_PER_SIDE outcomes of
    either kind.

    Source: Cox 1958, "Two further applications of a model for binary regression".
    """
    from scipy.optimize import brentq
    from scipy.special import expit

    if min(outcomes.sum(), (~outcomes).sum()) < MIN_IMAGES_PER_SIDE:
        return None
    odds, observed = _log_odds(probabilities), float(outcomes.sum())
    effect = 1.0 if groups is None else len(odds) / effective_count(groups)

    def excess(shift: float, deviations: float) -> float:
        rates = expit(odds + shift)
        return observed - float(rates.sum()) - deviations * float(np.sqrt(effect * (rates * (1 - rates)).sum()))

    value, low, high = (float(brentq(excess, -60.0, 60.0, args=(one,))) for one in (0.0, 1.96, -1.96))
    return Rate(value, Interval(low, high))


def _log_odds(probabilities: np.ndarray) -> np.ndarray:
    from scipy.special import logit

    room = float(np.finfo(np.float32).eps)
    return np.asarray(logit(np.clip(probabilities.astype(np.float64), room, 1 - room)))


def fit_calibration_slope(
    probabilities: np.ndarray, outcomes: np.ndarray, groups: np.ndarray | None
) -> tuple[float, Interval] | None:
    """Slope of a logistic regression on the log-odds, with a jackknife interval; None where it has no limit.

    Each image, or group, is left out by one Newton step, and the quantile is Student's for one degree of freedom less
    than there are of the rarer outcome: a plain sandwich is too narrow with few of them (MacKinnon and White 1985,
    "Some heteroskedasticity-consistent covariance matrix estimators").
    """
    from scipy.special import expit, stdtrit

    odds = _log_odds(probabilities)
    members = np.arange(len(odds)) if groups is None else np.unique(groups, return_inverse=True)[1]
    count = int(members.max(initial=0)) + 1
    if min(outcomes.sum(), (~outcomes).sum()) < MIN_IMAGES_PER_SIDE or odds.std() < 1e-6 or count < 2:
        return None
    design = np.stack([np.ones_like(odds), odds - odds.mean()], axis=1)  # [n, 2]
    weights = np.zeros(2)
    for _ in range(MAX_NEWTON_STEPS):
        rates = expit(design @ weights)
        bread = (design * (rates * (1 - rates))[:, None]).T @ design
        if np.linalg.cond(bread) > 1e12:  # the outcomes are separated
            return None
        step = np.linalg.solve(bread, design.T @ (outcomes - rates))
        weights = weights + np.clip(step, -1.0, 1.0)
        if np.abs(step).max() < 1e-8:
            break
    else:
        return None
    scores = np.stack([np.bincount(members, column) for column in (design * (outcomes - rates)[:, None]).T], axis=1)
    squares = (design[:, :, None] * design[:, None, :] * (rates * (1 - rates))[:, None, None]).reshape(-1, 4)
    own = np.stack([np.bincount(members, column) for column in squares.T], axis=1).reshape(-1, 2, 2)  # [groups, 2, 2]
    rest = bread - own
    if (np.linalg.det(rest) < 1e-9 * np.linalg.det(bread)).any():  # one group is all of it
        return None
    moves = np.linalg.solve(rest, scores[:, :, None])[:, 1, 0]
    rarer = min(len(np.unique(members[kind])) for kind in (outcomes, ~outcomes))
    reach = float(stdtrit(max(rarer - 1, 1), 0.975) * np.sqrt(np.square(moves).sum() * (count - 1) / count))
    return float(weights[1]), Interval(float(weights[1]) - reach, float(weights[1]) + reach)


def expected_calibration_error(
    probabilities: Float[np.ndarray, " n"], outcomes: Bool[np.ndarray, " n"], bins: int = NUM_BINS
) -> float:
    """ECE: mean |observed rate - probability| over equal-width bins, weighted by images; biased above 0 by chance.

    A bin includes its upper edge, not its lower one. Source: Guo et al. 2017, equation 3.
    """
    p = probabilities.astype(np.float64)
    indices = np.clip(np.ceil(p * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(indices, outcomes - p, minlength=bins)  # images * (observed rate - probability)
    return float(np.abs(gaps).sum() / len(p))


# -- Target scaling for regression

SCALING_KEY = "scaling"
"""Its key in the notes of a bundle."""
MAX_ROUNDING = 1e-4
"""Largest distance of neighbouring float32 numbers, in standard deviations of the targets."""


@dataclass(frozen=True)
class TargetScaling:
    """Mean and standard deviation of each column of the training targets, in the user's units."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    """1 for a constant column, so that nothing is divided by 0."""

    def standardize(self, targets: Float[np.ndarray, "n K"]) -> Float[np.ndarray, "n K"]:
        """Targets with mean 0 and deviation 1, float32; NaN stays NaN."""
        return ((targets.astype(np.float64) - self.mean) / self.deviation).astype(np.float32)

    def unstandardize(self, outputs: Float[np.ndarray, "n K"]) -> Float[np.ndarray, "n K"]:
        """Model outputs in the user's units, float32 or, where that is too coarse, float64."""
        numbers = outputs.astype(np.float64) * self.deviation + self.mean
        return numbers if self.needs_float64 else numbers.astype(np.float32)

    @property
    def needs_float64(self) -> bool:
        """Whether float32 is too coarse for numbers in the user's units, such as Unix times."""
        steps = np.spacing(np.abs(self.mean).astype(np.float32))
        return bool((steps > MAX_ROUNDING * np.array(self.deviation)).any())

    def to_json(self) -> dict[str, list[float]]:
        """As a bundle stores it."""
        return {"mean": list(self.mean), "deviation": list(self.deviation)}


def fit_scaling(targets: Float[np.ndarray, "n K"], weights: Float[np.ndarray, " n"] | None = None) -> TargetScaling:
    """Fit the scaling to training targets; unknown targets (NaN) are ignored, and a column without any gets mean 0.

    Args:
        weights: of the images; None is 1 for all.
    """
    means, deviations = [], []
    for column in targets.astype(np.float64).T:
        known = column[~np.isnan(column)]
        w = np.ones(len(known)) if weights is None else weights[~np.isnan(column)].astype(np.float64)
        order = np.lexsort((w, known))  # so that the order of the images changes no bit of the sums
        known, w = known[order], w[order]
        changes = len(known) > 0 and known.min() < known.max()
        mean, deviation = known.mean() if len(known) else 0.0, known.std() if changes else 1.0
        if changes and weights is not None:
            mean = np.average(known, weights=w)
            deviation = np.sqrt(np.average(np.square(known - mean), weights=w))
        means.append(float(mean))
        deviations.append(float(deviation))
    return TargetScaling(tuple(means), tuple(deviations))


def read_scaling(info: Mapping[str, object], columns: int, where: str) -> TargetScaling | None:
    """Read the scaling from the notes of a bundle; None if it has none, as for a model whose outputs have units.

    Raises:
        DamagedFileError: the note is no scaling of this many columns.
    """
    if SCALING_KEY not in info:
        return None
    noted = info[SCALING_KEY]
    parts = [noted.get(name) for name in ("mean", "deviation")] if isinstance(noted, Mapping) else []
    good = [
        part for part in parts
        if isinstance(part, list) and len(part) == columns
        and all(isinstance(number, int | float) and np.isfinite(number) for number in part)
    ]  # fmt: skip
    if len(good) != 2 or not all(number > 0 for number in good[1]):
        raise DamagedFileError(
            f"{where} must note the mean and deviation of {columns} training targets, without which its numbers have "
            f"no unit. Got {noted!r}. Use another copy."
        )
    return TargetScaling(tuple(map(float, good[0])), tuple(map(float, good[1])))


# -- Selective prediction: risk by coverage


@dataclass(frozen=True)
class RiskCoverageCurve:
    """Risk-coverage curve: images by falling confidence; images of equal confidence share their mean error."""

    coverage: Float64[np.ndarray, " n"]
    """Fractions of images answered, 1/n to 1."""
    risk: Float64[np.ndarray, " n"]
    """Mean error of the answered images."""

    @property
    def aurc(self) -> float:
        """Area under the risk-coverage curve (AURC); lower is better."""
        return float(self.risk.mean())

    def risk_at(self, coverage: float) -> float:
        """Mean error if this fraction of images, at least one, is answered."""
        return float(self.risk[max(0, int(np.ceil(coverage * len(self.risk) - 1e-9)) - 1)])


def risk_coverage_curve(confidences: Float[np.ndarray, " n"], errors: Float[np.ndarray, " n"]) -> RiskCoverageCurve:
    """Compute the risk-coverage curve.

    Args:
        errors: of each prediction, 0 or 1 for classes.

    Raises:
        UsageError: no images, or a confidence that is not finite.

    Source: El-Yaniv and Wiener 2010, "On the foundations of noise-free selective classification".
    """
    if not len(confidences) or not np.isfinite(confidences).all():
        raise UsageError(f"Risk by coverage needs finite confidences. Got {format_count(len(confidences), 'picture')}.")
    order = np.argsort(-confidences, kind="stable")
    _, numbers, sizes = np.unique(-confidences[order], return_inverse=True, return_counts=True)
    means = np.bincount(numbers, errors[order].astype(np.float64)) / sizes  # of equal confidence
    n = np.arange(1, len(order) + 1)
    return RiskCoverageCurve(coverage=n / len(order), risk=np.cumsum(means[numbers]) / n)
