"""Change detection with a bounded rate of false alarms: conformal p-values, bets on them, and a sum of e-processes.

While the images of a stream are exchangeable with those before them, the conformal p-values of their scores are
independent and uniform, whatever the scores are and however few there are. A bet is a density on 0..1, so the product
of its values is a martingale that starts at 1. The Shiryaev-Roberts sum begins a new product every day; minus the
number of days it is a martingale too, so an alarm at a limit c, after which the sum begins anew, comes at most once in
c days on average. Nothing is assumed of the distribution, the number of images a day, or the model.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

SHIFTS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Means of normal deviates that a bet on a shift expects; each has a bet in either direction."""
TAIL_SHARES = (0.03, 0.1, 0.3)
"""Shares of images at the end of the scale that a bet on a tail expects; each has a bet at either end."""
TAIL_POWER = 0.25
"""A bet on a tail takes p-values of such images to have the density k p^(k - 1)."""
NUM_BETS = 2 * len(SHIFTS) + 2 * len(TAIL_SHARES)
CHUNK = 512
"""Values that are compared with each other at once."""
SMALLEST_P = 1e-12


class ConformalRanks:
    """All values seen so far, and the smoothed conformal p-value of each further one among those before it.

    Source: Vovk, Gammerman and Shafer 2005, "Algorithmic learning in a random world", proposition 2.8.
    """

    def __init__(self, values: Float64[np.ndarray, " n"]):
        self._sorted = np.sort(values)

    def add(self, values: Float64[np.ndarray, " m"], jitter: Float64[np.ndarray, " m"]) -> Float64[np.ndarray, " m"]:
        """The p-values of further values in their order; small for a large value.

        Args:
            jitter: a uniform number of 0..1 for each, by which ties are broken.
        """
        parts = []
        for start in range(0, len(values), CHUNK):
            some, seen = values[start : start + CHUNK], len(self._sorted)
            below, not_above = (np.searchsorted(self._sorted, some, side=side) for side in ("left", "right"))
            earlier = np.tri(len(some), k=-1, dtype=bool)  # [i, j]: j came before i
            larger = seen - not_above + (earlier & (some > some[:, None])).sum(1)
            equal = 1 + not_above - below + (earlier & (some == some[:, None])).sum(1)
            parts.append((larger + jitter[start : start + CHUNK] * equal) / (seen + 1 + np.arange(len(some))))
            self._sorted = np.insert(self._sorted, np.sort(below), np.sort(some))
        return np.concatenate(parts) if parts else np.zeros(0)


def log_bets(p_values: Float64[np.ndarray, " m"]) -> Float64[np.ndarray, "m B"]:
    """The logarithm of every bet at every p-value: shifts up, shifts down, upper tails, lower tails."""
    from scipy.special import ndtri

    small = p_values.clip(SMALLEST_P, 1 - SMALLEST_P)
    deviates, shifts = -ndtri(small)[:, None], np.array([*SHIFTS, *(-one for one in SHIFTS)])
    tails = [
        np.log1p(share * (TAIL_POWER * end ** (TAIL_POWER - 1) - 1)) for end in (small, 1 - small)
        for share in TAIL_SHARES
    ]  # fmt: skip
    return np.concatenate([shifts * deviates - shifts**2 / 2, np.stack(tails, axis=1)], axis=1)


def is_upward(bet: int) -> bool:
    """Whether a bet, by its place in `log_bets`, is on larger values."""
    places = bet if bet < 2 * len(SHIFTS) else bet - 2 * len(SHIFTS)
    return places < (len(SHIFTS) if bet < 2 * len(SHIFTS) else len(TAIL_SHARES))


class DayEvidence(NamedTuple):
    """What a day has added."""

    evidence: float
    """The sum as a fraction of its limit; an alarm from 1 on."""
    bet: int
    """The bet that has gained most."""
    log_bets: Float64[np.ndarray, "m B"]
    """Of each value of the day."""


class ChangeDetector:
    """A Shiryaev-Roberts sum over days of the mean of all bets, which begins anew after an alarm.

    Args:
        reference: values before the stream.
        limit: c: at most one false alarm in c days on average.

    Source: Shin, Ramdas and Rinaldo 2024, "E-detectors: a nonparametric framework for sequential change detection";
    Vovk, Nouretdinov and Gammerman 2021, "Conformal testing in a binary model situation", for bets on p-values.
    """

    def __init__(self, reference: Float64[np.ndarray, " n"], limit: float):
        self._ranks, self._log_limit = ConformalRanks(reference), math.log(limit)
        self._log_sums = np.full(NUM_BETS, -np.inf)

    def add_day(self, values: Float64[np.ndarray, " m"], jitter: Float64[np.ndarray, " m"]) -> DayEvidence:
        """Add the values of a day in their order.

        Args:
            jitter: as in `ConformalRanks.add`.
        """
        bets = log_bets(self._ranks.add(values, jitter))
        self._log_sums = np.logaddexp(self._log_sums, 0.0) + bets.sum(0)
        mean = float(np.logaddexp.reduce(self._log_sums)) - math.log(NUM_BETS)
        best, evidence = int(self._log_sums.argmax()), math.exp(min(mean - self._log_limit, 50.0))
        if evidence >= 1:
            self._log_sums = np.full(NUM_BETS, -np.inf)
        return DayEvidence(evidence, best, bets)
