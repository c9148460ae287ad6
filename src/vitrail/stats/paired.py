"""Paired comparison of two models: sign-flip permutation test, and Holm's correction for multiple tests."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Shaped

from ..errors import UsageError

NUM_FLIPS = 9_999
MAX_EXACT_UNITS = 13
"""Most non-zero differences for which every permutation is tried."""
MAX_FLIP_VALUES = 10_000_000
"""Most signs drawn at once."""


def sign_flip_test(
    differences: Float64[np.ndarray, " n"], groups: Shaped[np.ndarray, " n"] | None = None, seed: int = 0
) -> float:
    """Two-sided p-value of a mean paired difference by a sign-flip permutation test.

    Each permutation swaps the two models on random images, all images of a group together. The p-value is the fraction
    of permutations whose mean is further from 0, plus half of those whose mean is equally far (mid-p, which is less
    conservative for discrete values such as correct and wrong). With at most MAX_EXACT_UNITS non-zero differences every
    permutation is tried, otherwise NUM_FLIPS random ones.

    Args:
        differences: of a per-image value, first model minus second.
        groups: group of each image, such as its patient.

    Raises:
        UsageError: no differences, or one that is not finite.

    Source: Fisher 1935, "The design of experiments", section 21; random exchanges as in Phipson and Smyth 2010,
    "Permutation p-values should never be zero"; mid-p as in Fagerland, Lydersen and Laake 2013, "The McNemar test for
    binary matched-pairs data".
    """
    if not len(differences) or not np.isfinite(differences).all():
        raise UsageError(f"A paired test needs finite differences. Got {len(differences)}.")
    sums = differences if groups is None else np.bincount(np.unique(groups, return_inverse=True)[1], differences)
    moving = sums[sums != 0]  # zeros do not change with the sign
    if not len(moving):
        return 1.0
    total, room = float(moving.sum()), 1e-12 * float(np.abs(moving).sum())
    if len(moving) <= MAX_EXACT_UNITS:
        signs = 1.0 - 2.0 * (np.arange(2 ** len(moving))[:, None] >> np.arange(len(moving)) & 1)
        return _count_extreme_sums(signs @ moving, total, room) / len(signs)
    generator, beyond = np.random.default_rng(seed), 1.0  # the observed sign pattern is one of the permutations
    rows = max(1, MAX_FLIP_VALUES // len(moving))
    for start in range(0, NUM_FLIPS, rows):
        shape = (min(rows, NUM_FLIPS - start), len(moving))
        drawn = np.frombuffer(generator.bytes((math.prod(shape) + 7) // 8), np.uint8)
        kept = np.unpackbits(drawn, count=math.prod(shape)).reshape(shape).astype(np.float64)  # 0 and 1, equally likely
        beyond += _count_extreme_sums(2 * (kept @ moving) - total, total, room)
    return beyond / (NUM_FLIPS + 1)


def _count_extreme_sums(sums: Float64[np.ndarray, " m"], total: float, tolerance: float) -> float:
    """Number of sums further from 0 than the total, plus half of those equally far within a rounding tolerance."""
    far = np.abs(sums) - abs(total)
    return float((far > tolerance).sum() + 0.5 * (np.abs(far) <= tolerance).sum())


def holm_correction(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, which control the family-wise error rate.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6.
    """
    order = np.argsort(p_values, kind="stable")
    scaled = np.asarray(p_values, np.float64)[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return np.asarray(adjusted[np.argsort(order, kind="stable")]).tolist()
