"""Answers that hold the truth as often as promised: sets of classes, and ranges of numbers.

The promise is about pictures like those that it was made on, and about all of them together: of 100 such pictures about
95 have the right class in their set, whatever the model is worth. A poor model pays with larger sets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

from ..errors import DataError, UsageError


@dataclass(frozen=True)
class ConformalSets:
    """From probabilities to sets of classes."""

    alpha: float
    """Share of pictures whose class may be missing from their set."""
    thresholds: tuple[float, ...]
    """The probability from which each class belongs to a set."""
    has_own_threshold: tuple[bool, ...]
    """Which classes have a cut of their own; the others share that of all."""

    def predict_sets(self, probabilities: Float[np.ndarray, "n K"]) -> Bool[np.ndarray, "n K"]:
        """Which classes each set holds; it may hold none, where nothing is likely enough."""
        return probabilities.astype(np.float64) >= np.array(self.thresholds)


def fit_conformal_sets(
    probabilities: Float[np.ndarray, "n K"],
    targets: Int64[np.ndarray, " n"],
    alpha: float = 0.05,
    class_conditional: bool = False,
) -> ConformalSets:
    """Cuts from validation pictures: a set holds every class from the probability that all but few true ones reached.

    Args:
        targets: class numbers; none unknown.
        class_conditional: keep the promise for each class by itself, where its own pictures are enough.

    Raises:
        DataError: too few pictures for such a promise.

    Source: Sadinle, Lei and Wasserman 2019, "Least ambiguous set-valued classifiers"; finite samples as in Vovk,
    Gammerman and Shafer 2005; by class as in Vovk 2012, "Conditional validity of inductive conformal predictors".
    """
    true = probabilities.astype(np.float64)[np.arange(len(targets)), targets]
    shared = -conformal_quantile(-true, alpha)
    K = probabilities.shape[1]
    own = [class_conditional and int((targets == k).sum()) >= min_calibration_size(alpha) for k in range(K)]
    cuts = [-conformal_quantile(-true[targets == k], alpha) if mine else shared for k, mine in enumerate(own)]
    return ConformalSets(alpha, tuple(cuts), tuple(own))


def conformal_quantile(distances: Float64[np.ndarray, " n"], alpha: float) -> float:
    """The distance within which a further picture lies with a chance of at least 1 - miss.

    Raises:
        DataError: fewer than 1 / miss - 1 pictures, of which even the largest distance promises less.
    """
    needed = min_calibration_size(alpha)
    if len(distances) < needed:
        raise DataError(
            f"To be right in {1 - alpha:.0%} of all cases takes at least {needed} validation pictures with a known "
            f"target. Got {len(distances)}."
        )
    place = int(np.ceil((len(distances) + 1) * (1 - alpha) - 1e-9))
    return float(np.sort(distances)[place - 1])


def min_calibration_size(alpha: float) -> int:
    """Pictures that a promise needs: 19 for 95 %, 99 for 99 %.

    Raises:
        UsageError: a share outside 0..1.
    """
    if not 0 < alpha < 1:
        raise UsageError(f"miss must lie between 0 and 1, for example 0.05. Got {alpha}.")
    return int(np.ceil(1 / alpha - 1 - 1e-9))
