"""Two models on the same pictures: is the difference more than luck, and which of many differences still are?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Shaped

from ..errors import UsageError

NUM_FLIPS = 9_999
MAX_EXACT_UNITS = 13
"""Pictures or groups that differ, up to which every exchange is tried."""
MAX_FLIP_VALUES = 10_000_000
"""Signs drawn at a time."""


def sign_flip_test(
    differences: Float64[np.ndarray, " n"], groups: Shaped[np.ndarray, " n"] | None = None, seed: int = 0
) -> float:
    """The two-sided p-value that a mean difference is 0, where each might as well have had the other sign.

    What two models get on a picture is exchanged at random, all pictures of a group together; the p-value is the share
    of exchanges whose mean is further from 0, and half of those whose mean is as far (mid-p: of whole numbers, such as
    right and wrong answers, many are, and to count them all would find too little). With at most 13 pictures or groups
    that differ every exchange is tried, else 9,999 random ones.

    Args:
        differences: of a figure that is a mean over pictures, first model less second.
        groups: of each picture, such as its patient.

    Raises:
        UsageError: no differences, or one that is no finite number.

    Source: Fisher 1935, "The design of experiments", section 21; random exchanges as in Phipson and Smyth 2010,
    "Permutation p-values should never be zero"; mid-p as in Fagerland, Lydersen and Laake 2013, "The McNemar test for
    binary matched-pairs data".
    """
    if not len(differences) or not np.isfinite(differences).all():
        raise UsageError(f"A paired test needs finite differences. Got {len(differences)}.")
    sums = differences if groups is None else np.bincount(np.unique(groups, return_inverse=True)[1], differences)
    moving = sums[sums != 0]  # the others are the same with either sign
    if not len(moving):
        return 1.0
    total, room = float(moving.sum()), 1e-12 * float(np.abs(moving).sum())
    if len(moving) <= MAX_EXACT_UNITS:
        signs = 1.0 - 2.0 * (np.arange(2 ** len(moving))[:, None] >> np.arange(len(moving)) & 1)
        return _count_extreme_sums(signs @ moving, total, room) / len(signs)
    generator, beyond = np.random.default_rng(seed), 1.0  # what happened is one of the exchanges
    rows = max(1, MAX_FLIP_VALUES // len(moving))
    for start in range(0, NUM_FLIPS, rows):
        shape = (min(rows, NUM_FLIPS - start), len(moving))
        kept = _random_bits(generator, shape)
        beyond += _count_extreme_sums(2 * (kept @ moving) - total, total, room)
    return beyond / (NUM_FLIPS + 1)


def _count_extreme_sums(sums: Float64[np.ndarray, " m"], total: float, tolerance: float) -> float:
    """How many sums are further from 0 than the total, and half of those as far, within `tolerance` for their last bits."""
    far = np.abs(sums) - abs(total)
    return float((far > tolerance).sum() + 0.5 * (np.abs(far) <= tolerance).sum())


def _random_bits(generator: np.random.Generator, shape: tuple[int, int]) -> Float64[np.ndarray, "m n"]:
    """Zeros and ones, each with the chance of one half."""
    n = shape[0] * shape[1]
    drawn = np.frombuffer(generator.bytes((n + 7) // 8), np.uint8)
    return np.unpackbits(drawn, count=n).reshape(shape).astype(np.float64)


def holm_correction(p_values: Sequence[float]) -> list[float]:
    """P-values of several questions asked at once, raised so that 5 % of them stay 5 % for all together.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6.
    """
    order = np.argsort(p_values, kind="stable")
    raised = np.asarray(p_values, np.float64)[order] * np.arange(len(p_values), 0, -1)
    held = np.minimum(np.maximum.accumulate(raised), 1.0)
    return np.asarray(held[np.argsort(order, kind="stable")]).tolist()
