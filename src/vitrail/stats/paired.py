"""Two models on the same pictures: is the difference more than luck, and which of many differences still are?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Shaped

from ..errors import UsageError

FLIPS = 9_999
MEMORY = 2_000_000
"""Signs drawn at a time."""


def sign_flips(
    differences: Float64[np.ndarray, " n"], groups: Shaped[np.ndarray, " n"] | None = None, seed: int = 0
) -> float:
    """The two-sided p-value that a mean difference is 0, where each might as well have had the other sign.

    What two models get on a picture is exchanged at random, all pictures of a group together; the p-value is the share
    of exchanges whose mean is at least as far from 0. With at most 13 pictures or groups that differ every exchange is
    tried, else 9,999 random ones.

    Args:
        differences: of a figure that is a mean over pictures, first model less second.
        groups: of each picture, such as its patient.

    Source: Fisher 1935, "The design of experiments", section 21; Good 2005, "Permutation tests".
    """
    from scipy.stats import permutation_test

    if not len(differences) or not np.isfinite(differences).all():
        raise UsageError(f"A paired test needs finite differences. Got {len(differences)}.")
    sums = differences if groups is None else np.bincount(np.unique(groups, return_inverse=True)[1], differences)
    moving = sums[sums != 0]  # the others are the same with either sign
    if len(moving) < 2:
        return 1.0
    found = permutation_test(
        (moving,),
        lambda x, axis: np.sum(x, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=FLIPS,
        batch=max(1, MEMORY // len(moving)),
        rng=np.random.default_rng(seed),
    )
    return float(found.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values of several questions asked at once, raised so that 5 % of them stay 5 % for all together.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6.
    """
    order = np.argsort(p_values, kind="stable")
    raised = np.asarray(p_values, np.float64)[order] * np.arange(len(p_values), 0, -1)
    held = np.minimum(np.maximum.accumulate(raised), 1.0)
    return np.asarray(held[np.argsort(order, kind="stable")]).tolist()
