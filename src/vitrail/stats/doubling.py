"""What twice the training images are expected to bring, from fits to quarters, halves and all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64, Shaped

from .intervals import Interval

PARTS = (4, 2, 1)
"""The training images are dealt into so many parts, and each part is fitted to."""
SHRINKAGES = np.linspace(0.25, 1.0, 31)
"""Each doubling brings this fraction of what the one before it brought; all are equally likely beforehand. Of errors
that fall as n ** -c towards a limit it is 2 ** -c."""
NUM_DRAWS = 20_000


@dataclass(frozen=True, kw_only=True)
class DoublingForecast:
    """The metric at quarters, halves and all of the training images, and what twice as many are expected to add."""

    values: tuple[float, ...]
    """Mean metric of the fits to each of PARTS."""
    gain: float
    """Expected change of the metric with twice the images."""
    interval: Interval
    """95 % interval of the change that a training on twice the images would show on as many held-out images."""


def forecast_doubling(
    contributions: Float64[np.ndarray, "fits n"],
    parts: Int64[np.ndarray, " fits"],
    groups: Shaped[np.ndarray, " n"] | None = None,
    seed: int = 0,
) -> DoublingForecast:
    """Forecast the next doubling from the last two.

    The gains of successive doublings shrink by an unknown constant factor (a power law), and a doubling does not harm.
    Both gains are uncertain, because other held-out images and other training images would have given others: the
    first is seen between the held-out images, the second between fits to different parts, whose variance is taken to
    fall as 1 / n. The forecast averages over the factor and the gain that these two gains leave possible, and adds both
    kinds of chance once more for the doubling that is to come.

    Args:
        contributions: of each held-out image to the metric of each fit, whose mean is the metric, such as hits.
        parts: of each fit, into how many parts the images were dealt: each of PARTS, 4 and 2 with all their parts.
        groups: group of each held-out image, such as its patient.

    Source: own; power laws of learning curves as in Hestness et al. 2017, "Deep learning scaling is predictable,
    empirically", and Viering and Loog 2021, "The shape of learning curves".
    """
    from scipy.special import ndtr, ndtri, stdtrit

    curves = np.stack([contributions[parts == count].mean(0) for count in PARTS])  # [3, n]
    values = curves.mean(1)
    steps = np.diff(curves, axis=0)  # what each doubling changed at each image, [2, n]
    numbers = np.arange(steps.shape[1]) if groups is None else np.unique(groups, return_inverse=True)[1]
    apart = steps - steps.mean(1, keepdims=True)
    sums = np.stack([np.bincount(numbers, row) for row in apart])
    units = sums.shape[1]
    of_images = sums @ sums.T / steps.shape[1] ** 2 * units / max(units - 1, 1)

    fits, freedom, spread = contributions.mean(1), 0, 0.0
    for count, value in zip(PARTS, values, strict=True):
        own = fits[parts == count]
        spread += float(np.square(own - value).sum()) / count
        freedom += len(own) - 1
    of_training = spread / max(freedom, 1)  # variance of a fit to all
    noise = of_images + of_training * np.array([[2.0, -1.0], [-1.0, 2.0]])  # of both gains, [2, 2]
    inverse = np.linalg.pinv(noise, hermitian=True)

    gains = np.diff(values)
    shapes = np.stack([1 / SHRINKAGES, np.ones_like(SHRINKAGES)], axis=1)  # of the gains, in units of the last one
    precision = np.einsum("si,ij,sj->s", shapes, inverse, shapes)
    if not (precision > 0).all():  # every fit gives the same answers
        return DoublingForecast(values=tuple(values.tolist()), gain=0.0, interval=_no_change_interval(units))
    last = shapes @ inverse @ gains / precision
    deviations = precision**-0.5
    residual = gains - last[:, None] * shapes
    misfit = np.einsum("si,ij,sj->s", residual, inverse, residual)
    positive = np.maximum(ndtr(last / deviations), 1e-300)
    weights = np.exp(-(misfit - misfit.min()) / 2) * deviations * positive

    generator = np.random.default_rng(seed)
    chosen = generator.choice(len(SHRINKAGES), NUM_DRAWS, p=weights / weights.sum())
    below = ndtr(-last / deviations)[chosen]
    share = below + generator.random(NUM_DRAWS) * (1 - below)
    drawn = np.maximum(last[chosen] + deviations[chosen] * ndtri(np.clip(share, 1e-12, 1 - 1e-12)), 0.0)
    expected = drawn * SHRINKAGES[chosen]
    wider = float(stdtrit(max(freedom, 1), 0.975)) / 1.96
    chance = np.sqrt(of_images[1, 1] + of_training / 2) * wider * generator.standard_normal(NUM_DRAWS)
    low, high = np.quantile(expected + chance, [0.025, 0.975]).tolist()
    return DoublingForecast(values=tuple(values.tolist()), gain=float(expected.mean()), interval=Interval(low, high))


def _no_change_interval(units: int) -> Interval:
    """Bounds of a mean change that none of so many images, or groups, has shown: the rule of three."""
    reach = min(1.0, 3 / units)
    return Interval(-reach, reach)
