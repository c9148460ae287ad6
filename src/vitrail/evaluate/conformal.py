"""Conformal prediction: sets of classes, ranges for regression, and p-values of anomaly scores, with a guarantee.

The guarantee is marginal and holds for images exchangeable with the validation images: with alpha = 0.05 about 95 of
100 such images have the true class in their set, however poor the model is. A poor model has larger sets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64, Shaped

from ..errors import DataError, UsageError


def fit_set_threshold(
    probabilities: Float[np.ndarray, "n K"],
    targets: Int64[np.ndarray, " n"],
    alpha: float = 0.05,
    class_weights: tuple[float, ...] = (),
) -> float:
    """Fit on validation images the probability that all but a fraction alpha of the true classes reach.

    Args:
        targets: class indices; all known.
        class_weights: ratio of the stated prevalence of each class to that of these images; empty for equal ones.

    Raises:
        DataError: too few images for this alpha.

    Source: Sadinle, Lei and Wasserman 2019, "Least ambiguous set-valued classifiers"; finite samples as in Vovk,
    Gammerman and Shafer 2005.
    """
    true = probabilities.astype(np.float64)[np.arange(len(targets)), targets]
    weights = np.array(class_weights)[targets] if class_weights else None
    return -conformal_quantile(-true, alpha, weights, max(class_weights, default=1.0))


def predict_sets(probabilities: Float[np.ndarray, "n K"], thresholds: tuple[float, ...]) -> Bool[np.ndarray, "n K"]:
    """bool [n, K]: the classes in each set, from the threshold of each class on; a set may be empty."""
    return probabilities.astype(np.float64) >= np.array(thresholds)


def conformal_p_values(
    scores: Float[np.ndarray, " n"], calibration: tuple[float, ...], weights: tuple[float, ...] = ()
) -> Float64[np.ndarray, " n"]:
    """For each score how often a further good image has one as large: (1 + as large ones) / (1 + all).

    Called a defect where that is at most alpha, a good image is so called with a probability of at most alpha, if it
    and the calibration images are exchangeable; with weights, if their groups are.

    Args:
        calibration: the scores of good images, ascending.
        weights: of each of them, 1 / (number of its group), where whole groups are exchangeable; empty for 1.

    Source: Vovk, Gammerman and Shafer 2005; groups as in Lee, Barber and Willett 2023, "Distribution-free inference
    with hierarchical data". Scores that each come from a model without the image are slightly larger than those of the
    model with all of them, which errs on the safe side (jackknife, Barber et al. 2021).
    """
    counted = np.array(weights) if weights else np.ones(len(calibration))
    as_large = np.append(np.cumsum(counted[::-1])[::-1], 0.0)  # from each place on
    places = np.searchsorted(np.array(calibration), scores.astype(np.float64), side="left")
    return np.asarray((1 + as_large[places]) / (1 + counted.sum()))


def smallest_p_value(calibration: tuple[float, ...], weights: tuple[float, ...] = ()) -> float:
    """The smallest p-value that these calibration images allow: 1 / (n + 1), or with weights 1 / (groups + 1)."""
    return 1 / (1 + (sum(weights) if weights else len(calibration)))


class Promise(NamedTuple):
    """The rate of false alarms that p-values promise, and what it rests on."""

    alpha: float
    """A good image is called a defect with at most this probability."""
    calibrated: int
    """Good images, or groups of them, that the p-values count."""

    def chance_of_alarms(self, called: Bool[np.ndarray, " n"], groups: Shaped[np.ndarray, " n"] | None) -> float:
        """The chance of as many alarms or more on good images that are exchangeable with those of the calibration.

        The rate that a calibration has reached is itself drawn: Beta(k, N + 1 - k) with k = alpha (N + 1). A binomial
        test at alpha would doubt one of seven honest models with N = 99 that is shown 1,000 good images.

        Args:
            called: whether each good image is called a defect.
            groups: of each image; the alarms of one group count together as their share of it, rounded down in all.

        Source: Vovk 2012, "Conditional validity of inductive conformal predictors", section 3.
        """
        from scipy.stats import betabinom

        alarms, n = int(called.sum()), len(called)
        if groups is not None:
            _, numbers = np.unique(groups, return_inverse=True)
            shares = np.bincount(numbers, called) / np.bincount(numbers)
            alarms, n = int(shares.sum() + 1e-9), len(shares)
        k = max(1, int(self.alpha * (self.calibrated + 1) + 1e-9))
        return float(betabinom.sf(alarms - 1, n, k, self.calibrated + 1 - k))


def conformal_quantile(
    distances: Float64[np.ndarray, " n"],
    alpha: float,
    weights: Float64[np.ndarray, " n"] | None = None,
    further_weight: float = 1.0,
) -> float:
    """The finite-sample quantile: a further image lies within this distance with probability at least 1 - alpha.

    Args:
        weights: of each image, where further images have another prevalence; infinity may be the quantile then.
        further_weight: largest weight of a further image.

    Raises:
        DataError: fewer than 1 / alpha - 1 images, for which no distance is large enough.

    Source: weights as in Podkopaev and Ramdas 2021, "Distribution-free uncertainty quantification for classification
    under label shift".
    """
    needed = min_calibration_size(alpha)
    if len(distances) < needed:
        raise DataError(
            f"To be right in {1 - alpha:.0%} of all cases takes at least {needed} validation pictures with a known "
            f"target. Got {len(distances)}."
        )
    if weights is not None:
        order = np.argsort(distances, kind="stable")
        reached = np.cumsum(weights[order]) >= (weights.sum() + further_weight) * (1 - alpha) - 1e-9
        return float(distances[order][reached.argmax()]) if reached.any() else float("inf")
    rank = int(np.ceil((len(distances) + 1) * (1 - alpha) - 1e-9))
    return float(np.sort(distances)[rank - 1])


def min_calibration_size(alpha: float) -> int:
    """Smallest number of calibration images for this alpha: 19 for 95 %, 99 for 99 %.

    Raises:
        UsageError: alpha outside 0..1.
    """
    if not 0 < alpha < 1:
        raise UsageError(f"miss must lie between 0 and 1, for example 0.05. Got {alpha}.")
    return int(np.ceil(1 / alpha - 1 - 1e-9))
