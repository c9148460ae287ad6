"""Split conformal prediction: sets of classes, and ranges for regression, with a guaranteed coverage.

The guarantee is marginal and holds for images exchangeable with the validation images: with alpha = 0.05 about 95 of
100 such images have the true class in their set, however poor the model is. A poor model has larger sets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

from ..errors import DataError, UsageError


@dataclass(frozen=True)
class ConformalSets:
    """Conformal prediction sets: a class belongs to the set from its threshold on."""

    alpha: float
    """Fraction of images whose true class may be missing from the set."""
    thresholds: tuple[float, ...]
    """The probability from which each class belongs to a set."""
    has_own_threshold: tuple[bool, ...]
    """Which classes have a class-conditional threshold; the others share one."""

    def predict_sets(self, probabilities: Float[np.ndarray, "n K"]) -> Bool[np.ndarray, "n K"]:
        """bool [n, K]: the classes in each set; a set may be empty."""
        return probabilities.astype(np.float64) >= np.array(self.thresholds)


def fit_conformal_sets(
    probabilities: Float[np.ndarray, "n K"],
    targets: Int64[np.ndarray, " n"],
    alpha: float = 0.05,
    class_conditional: bool = False,
) -> ConformalSets:
    """Fit thresholds on validation images: the probability that all but a fraction alpha of the true classes reach.

    Args:
        targets: class indices; all known.
        class_conditional: guarantee the coverage for each class separately, where it has enough images.

    Raises:
        DataError: too few images for this alpha.

    Source: Sadinle, Lei and Wasserman 2019, "Least ambiguous set-valued classifiers"; finite samples as in Vovk,
    Gammerman and Shafer 2005; by class as in Vovk 2012, "Conditional validity of inductive conformal predictors".
    """
    true = probabilities.astype(np.float64)[np.arange(len(targets)), targets]
    shared = -conformal_quantile(-true, alpha)
    K = probabilities.shape[1]
    own = [class_conditional and int((targets == k).sum()) >= min_calibration_size(alpha) for k in range(K)]
    thresholds = [-conformal_quantile(-true[targets == k], alpha) if mine else shared for k, mine in enumerate(own)]
    return ConformalSets(alpha, tuple(thresholds), tuple(own))


def conformal_quantile(distances: Float64[np.ndarray, " n"], alpha: float) -> float:
    """The finite-sample quantile: a further image lies within this distance with probability at least 1 - alpha.

    Raises:
        DataError: fewer than 1 / alpha - 1 images, for which no distance is large enough.
    """
    needed = min_calibration_size(alpha)
    if len(distances) < needed:
        raise DataError(
            f"To be right in {1 - alpha:.0%} of all cases takes at least {needed} validation pictures with a known "
            f"target. Got {len(distances)}."
        )
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
