"""Noise: every value changed by itself, as by warm sensors, few photons, and bits that are lost.

Source of all tables: Hendrycks and Dietterich 2019, "Benchmarking neural network robustness to common corruptions and
perturbations", and the numbers of its published scripts.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64

from .drawn import Corruption, Draws, Values

GAUSSIAN = (0.08, 0.12, 0.18, 0.26, 0.38)
"""Deviations, where white is 1."""
SHOT = (60, 25, 12, 5, 3)
"""Photons that make a white value."""
IMPULSE = (0.03, 0.06, 0.09, 0.17, 0.27)
"""Shares of the values that become black or white."""


def gaussian_noise(values: Values, severity: int, draws: Draws) -> Values:
    """The same noise in the dark and in the light."""
    return values + GAUSSIAN[severity - 1] * draws.normal("noise", *values.shape)


def shot_noise(values: Values, severity: int, draws: Draws) -> Values:
    """Light counted photon by photon: Poisson noise, strongest where few arrive."""
    photons = SHOT[severity - 1]
    return _arrived(np.rint(255 * values).astype(np.int64), photons, draws.uniform("photons", *values.shape)) / photons


def impulse_noise(values: Values, severity: int, draws: Draws) -> Values:
    """Salt and pepper: single values of single channels black or white."""
    share, drawn = IMPULSE[severity - 1], draws.uniform("noise", *values.shape)
    return np.where(drawn < share / 2, 0.0, np.where(drawn < share, 1.0, values))


KINDS: dict[str, Corruption] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
}


def _arrived(
    levels: Int64[np.ndarray, "C H W"], photons: int, drawn: Float64[np.ndarray, "C H W"]
) -> Int64[np.ndarray, "C H W"]:
    """The smallest count whose cumulated Poisson chance is above the draw; the mean is level / 255 * photons.

    All 256 distributions stand one after another in one rising list, each moved up by its level.
    """
    means = np.arange(256)[:, None] * photons / 255  # [256, 1]
    most = photons + round(12 * photons**0.5) + 20
    factors = np.concatenate([np.exp(-means), means / np.arange(1, most)], axis=1)  # [256, most]
    cumulated = np.minimum(np.cumprod(factors, axis=1).cumsum(1), 1)
    places = np.searchsorted((np.arange(256)[:, None] + cumulated).ravel(), levels + drawn, side="right")
    return np.minimum(places - levels * most, most)
