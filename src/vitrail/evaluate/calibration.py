"""How far probabilities mean what they say, and the temperature that makes them mean it.

A temperature divides the logits of every picture alike: above 1 it makes a model less sure of itself, below 1 more. It
is fitted on validation pictures, kept in the bundle, and applied by every door. It never changes which class is the
likeliest, nor on which side of one half a label lies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Shaped

from ..data.source import Task
from ..errors import DamagedFileError, UsageError
from ..stats.intervals import Interval, wilson_interval

MIN_IMAGES = 100
"""Validation pictures that a temperature needs, and for a label at least 10 of them with it and 10 without."""
MIN_IMAGES_PER_SIDE = 10
LOG_TEMPERATURE_PRIOR_STD = 0.5
"""Deviation of the logarithms of temperatures that are believed in beforehand, as much as some ten pictures would tell:
many pictures say what they like, and a few that are all answered rightly cannot ask for endless confidence."""
TEMPERATURE_RANGE = (0.05, 20.0)
NUM_BINS = 15


@dataclass(frozen=True)
class Temperature:
    """One number for all classes of a softmax, or one for each label."""

    values: tuple[float, ...]

    def scale_logits(self, outputs: Float[np.ndarray, "n K"]) -> Float64[np.ndarray, "n K"]:
        """Logits of the model, calibrated."""
        return outputs.astype(np.float64) / np.array(self.values)


def fit_temperature(
    task: Task, outputs: Float[np.ndarray, "n K"], targets: Shaped[np.ndarray, " n *K"]
) -> Temperature | None:
    """The temperature under which validation pictures are likeliest; None where they are too few, or for numbers.

    It is never less likely than 1. A label with too few pictures keeps its logits as they are.

    Args:
        outputs: logits of the model.
        targets: class numbers [n], -1 where unknown; or labels 0..1 [n, K], NaN where unknown.

    Source: Guo et al. 2017, "On calibration of modern neural networks", with a belief about temperatures added.
    """
    if task == "number":
        return None
    logits = outputs.astype(np.float64)
    if task == "classes":
        known = targets >= 0
        if known.sum() < MIN_IMAGES:
            return None
        return Temperature((_minimize_over_temperature(_softmax_nll(logits[known], targets[known])),))
    values = tuple(_fit_label_temperature(logit, truth) for logit, truth in zip(logits.T, targets.T, strict=True))
    return Temperature(values) if any(value != 1 for value in values) else None


def _fit_label_temperature(logits: np.ndarray, targets: np.ndarray) -> float:
    known = ~np.isnan(targets)
    logits, targets = logits[known], targets[known].astype(np.float64)
    kinds = int((targets >= 0.5).sum()), int((targets < 0.5).sum())
    if sum(kinds) < MIN_IMAGES or min(kinds) < MIN_IMAGES_PER_SIDE:
        return 1.0
    return _minimize_over_temperature(_sigmoid_nll(logits, targets))


def _minimize_over_temperature(loss: Callable[[float], float]) -> float:
    """The temperature with the smallest loss, summed over pictures, and the least disbelief."""
    from scipy.optimize import minimize_scalar

    def unlikely(logarithm: float) -> float:
        return loss(float(np.exp(logarithm))) + logarithm**2 / (2 * LOG_TEMPERATURE_PRIOR_STD**2)

    found = minimize_scalar(unlikely, bounds=np.log(TEMPERATURE_RANGE), method="bounded", options={"xatol": 1e-6})
    return float(np.exp(found.x)) if found.fun < unlikely(0.0) else 1.0


def _softmax_nll(logits: np.ndarray, targets: np.ndarray) -> Callable[[float], float]:
    from scipy.special import logsumexp

    right = logits[np.arange(len(targets)), targets]
    return lambda temperature: float((logsumexp(logits / temperature, axis=1) - right / temperature).sum())


def _sigmoid_nll(logits: np.ndarray, targets: np.ndarray) -> Callable[[float], float]:
    return lambda temperature: float((np.logaddexp(0, logits / temperature) - targets * logits / temperature).sum())


class CalibrationBin(NamedTuple):
    """Pictures of similar probability."""

    mean_probability: float
    """Their mean probability."""
    observed_rate: float
    """How many of them came true."""
    interval: Interval
    """95 % Wilson interval of that share."""
    n: int


def reliability_curve(
    probabilities: Float[np.ndarray, " n"], outcomes: Bool[np.ndarray, " n"], bins: int = NUM_BINS
) -> list[CalibrationBin]:
    """Bins of equal numbers of pictures, from unlikely to likely; fewer bins where there are fewer pictures."""
    return [
        CalibrationBin(
            float(probabilities[group].mean()),
            float(outcomes[group].mean()),
            wilson_interval(int(outcomes[group].sum()), len(group)),
            len(group),
        )
        for group in _equal_count_bins(probabilities, bins)
    ]


def debiased_calibration_error(
    probabilities: Float[np.ndarray, " n"], outcomes: Bool[np.ndarray, " n"], bins: int = NUM_BINS
) -> float:
    """How far probabilities lie from shares that came true, on average, and without what chance alone adds.

    In bins of equal numbers of pictures. The plain mean of |share - probability| is above 0 even where all is
    right, the more so the fewer the pictures. Here the sign of a bin's gap comes from one half of its pictures and
    its size from the other, averaged over all halvings: where all is right, the mean of that is 0, and a large gap
    keeps its size. Below 0, which only chance makes it, it is given as 0.

    Raises:
        UsageError: no pictures.

    Source: own; the bias of the plain estimate is described by Roelofs et al. 2022, "Mitigating bias in calibration
    error estimation", and Kumar et al. 2019, "Verified uncertainty calibration".
    """
    from scipy.special import erf

    if not len(probabilities):
        raise UsageError("A calibration error needs at least one picture. Got none.")
    total = 0.0
    for group in _equal_count_bins(probabilities, bins):
        p = probabilities[group].astype(np.float64)
        gap = abs(float(outcomes[group].mean() - p.mean()))
        luck = float(np.sqrt((p * (1 - p)).sum())) / len(group)  # deviation of the gap, if all is right
        if luck > 0:
            density = np.exp(-0.5 * (gap / luck) ** 2) / np.sqrt(2 * np.pi)
            gap = gap * float(erf(gap / luck / np.sqrt(2))) - 2 * luck * float(density)
        total += gap * len(group) / len(probabilities)
    return max(0.0, total)


def expected_calibration_error(
    probabilities: Float[np.ndarray, " n"], outcomes: Bool[np.ndarray, " n"], bins: int = NUM_BINS
) -> float:
    """Mean |share - probability| over bins of equal width, weighted by pictures (ECE); above 0 even where all is right.

    A bin holds its upper edge, not its lower one. Source: Guo et al. 2017, equation 3.
    """
    p = probabilities.astype(np.float64)
    places = np.clip(np.ceil(p * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(places, outcomes - p, minlength=bins)  # pictures * (share - probability)
    return float(np.abs(gaps).sum() / len(p))


def _equal_count_bins(probabilities: np.ndarray, bins: int) -> list[np.ndarray]:
    order = np.argsort(probabilities, kind="stable")
    return [group for group in np.array_split(order, bins) if len(group)]


# The scale that numbers are learnt on: training targets with mean 0 and deviation 1, and the way back.

SCALING_KEY = "scaling"
"""What a bundle calls it among its notes."""


@dataclass(frozen=True)
class TargetScaling:
    """Mean and deviation of each column of the training targets, in the user's units."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    """1 for a column that never changes, so that nothing is divided by 0."""

    def standardize(self, targets: Float[np.ndarray, "n K"]) -> Float[np.ndarray, "n K"]:
        """Targets as the loss wants them, float32; NaN stays NaN."""
        return ((targets.astype(np.float64) - self.mean) / self.deviation).astype(np.float32)

    def unstandardize(self, outputs: Float[np.ndarray, "n K"]) -> Float[np.ndarray, "n K"]:
        """A model's outputs in the user's units, float32."""
        return (outputs.astype(np.float64) * self.deviation + self.mean).astype(np.float32)

    def to_json(self) -> dict[str, list[float]]:
        """As a bundle keeps it."""
        return {"mean": list(self.mean), "deviation": list(self.deviation)}


def fit_scaling(targets: Float[np.ndarray, "n K"]) -> TargetScaling:
    """The scale of training targets; unknown ones (NaN) count for nothing, and a column of them gets mean 0."""
    means, deviations = [], []
    for column in targets.astype(np.float64).T:
        known = np.sort(column[~np.isnan(column)])  # so that the order of the pictures changes no bit of the sums
        changes = len(known) > 0 and known.min() < known.max()
        means.append(float(known.mean()) if len(known) else 0.0)
        deviations.append(float(known.std()) if changes else 1.0)
    return TargetScaling(tuple(means), tuple(deviations))


def read_scaling(info: Mapping[str, object], columns: int, where: str) -> TargetScaling | None:
    """The scale that a bundle has noted; None if it has noted none, as one of a model that answers in units by itself.

    Raises:
        DamagedFileError: it is not one of this many columns.
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


# What a model is worth if it may stay silent: the error of its answers by the share of pictures it answers.


@dataclass(frozen=True)
class RiskCoverageCurve:
    """Pictures in the order of their confidence, the surest first; where several are equally sure, their mean error."""

    coverage: Float64[np.ndarray, " n"]
    """Shares of pictures answered, 1/n to 1."""
    risk: Float64[np.ndarray, " n"]
    """Mean error of those."""

    @property
    def aurc(self) -> float:
        """Mean risk over all coverages (AURC); the lower the better."""
        return float(self.risk.mean())

    @property
    def excess_aurc(self) -> float:
        """That area less what the best order of the same errors would have (E-AURC): 0 if confidence knows its errors.

        Source: Geifman, Uziel and El-Yaniv 2019, "Bias-reduced uncertainty estimation for deep neural classifiers".
        """
        n = len(self.risk)
        wrong = round(float(self.risk[-1]) * n)  # errors of 0 and 1, which is what this is for
        best = np.maximum(0, np.arange(1, n + 1) - (n - wrong)) / np.arange(1, n + 1)
        return self.aurc - float(best.mean())

    def coverage_at(self, risk: float) -> float:
        """The largest share of pictures that can be answered with at most this mean error; 0 if none can."""
        fits = np.flatnonzero(self.risk <= risk)
        return float(self.coverage[fits[-1]]) if len(fits) else 0.0

    def risk_at(self, coverage: float) -> float:
        """Mean error if this share of pictures is answered, at least one."""
        return float(self.risk[max(0, int(np.ceil(coverage * len(self.risk) - 1e-9)) - 1)])


def risk_coverage_curve(confidences: Float[np.ndarray, " n"], errors: Float[np.ndarray, " n"]) -> RiskCoverageCurve:
    """Risk by coverage.

    Args:
        errors: of each answer, 0 or 1 for classes.

    Raises:
        UsageError: no pictures, or a confidence that is no finite number.

    Source: El-Yaniv and Wiener 2010, "On the foundations of noise-free selective classification".
    """
    if not len(confidences) or not np.isfinite(confidences).all():
        raise UsageError(f"Risk by coverage needs finite confidences. Got {len(confidences)} pictures.")
    order = np.argsort(-confidences, kind="stable")
    _, numbers, sizes = np.unique(-confidences[order], return_inverse=True, return_counts=True)
    means = np.bincount(numbers, errors[order].astype(np.float64)) / sizes  # of those equally sure
    n = np.arange(1, len(order) + 1)
    return RiskCoverageCurve(coverage=n / len(order), risk=np.cumsum(means[numbers]) / n)
