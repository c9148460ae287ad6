"""Prevalence: probabilities moved from the validation images to another prevalence, and its estimate without labels."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64

from ..data.source import Task
from ..errors import DataError, UsageError
from ..stats.intervals import Interval, bootstrap_intervals
from .predictions import LABEL_THRESHOLD, ClassificationPredictions, MultilabelPredictions

MAX_ROUNDS, TOLERANCE = 300, 1e-6
"""Rounds of expectation and maximisation, and the largest change of a share after which they end."""
BOOTSTRAP_SAMPLES = 200
DOUBT_LEVEL = 0.05
"""Share of calibrated models that are doubted."""


def shift_probabilities(
    task: Task, probabilities: Float[np.ndarray, "n K"], ratios: tuple[float, ...]
) -> Float[np.ndarray, "n K"]:
    """Move calibrated probabilities to another prevalence; float32 [n, K].

    Only the prevalence may differ: images of one class must look alike in both places (prior shift).

    Args:
        ratios: what the share of each class is multiplied by, or the odds of each label.

    Source: Saerens, Latinne and Decaestecker 2002, "Adjusting the outputs of a classifier to new a priori
    probabilities", equation 2.4.
    """
    wide, factors = probabilities.astype(np.float64), np.array(ratios)
    moved = wide * factors
    total = moved.sum(1, keepdims=True) if task == "classification" else moved + (1 - wide)
    return (moved / np.maximum(total, np.finfo(np.float64).tiny)).astype(np.float32)


def measure_prevalences(table: ClassificationPredictions | MultilabelPredictions) -> tuple[float, ...]:
    """Fraction of the known images of each class, or with each label.

    Raises:
        DataError: a class or label of which no target is known.
    """
    if isinstance(table, ClassificationPredictions):
        known = np.zeros(0, np.int64) if table.targets is None else table.targets[table.targets >= 0]
        numbers = np.full(len(table.classes), len(known))
        positives = np.bincount(known, minlength=len(table.classes))
    else:
        targets = np.full(table.probabilities.shape, np.nan) if table.targets is None else table.targets
        numbers, positives = table.known_mask.sum(0), (targets >= LABEL_THRESHOLD).sum(0)  # NaN is no positive
    if not numbers.all():
        name = table.classes[int(np.argmin(numbers))]
        raise DataError(f"No {table.split or 'stored'} picture has a known target of {name}, so its share is unknown.")
    return tuple((positives / numbers).tolist())


def complete_prevalences(
    task: Task, names: tuple[str, ...], measured: tuple[float, ...], stated: Mapping[str, float]
) -> tuple[float, ...]:
    """The prevalence of every class or label at the new place.

    Labels that are not stated keep theirs; classes that are not stated share the rest in their old proportions.

    Args:
        measured: on the validation images.
        stated: by name, each strictly between 0 and 1.

    Raises:
        UsageError: shares of classes that do not add up to 1.
        DataError: a stated prevalence of something that all or none of the validation images have.
    """
    for name, share in zip(names, measured, strict=True):
        if (task == "classification" or name in stated) and not 0 < share < 1:
            raise DataError(
                f"A prevalence moves probabilities by the share in the validation pictures, and {share:.0%} of them "
                f"have {name}. Train with validation pictures of both kinds."
            )
    if task == "multilabel":
        return tuple(stated.get(name, share) for name, share in zip(names, measured, strict=True))
    total, rest = sum(stated.values()), 1 - sum(stated[name] for name in names if name in stated)
    others = sum(share for name, share in zip(names, measured, strict=True) if name not in stated)
    if (others and rest <= 0) or (not others and abs(rest) > 1e-6):
        raise UsageError(
            f"The shares of all {len(names)} classes add up to 1. Got {total:g} for {', '.join(stated)}; leave one "
            "class out and it takes the rest."
        )
    return tuple(stated.get(name, rest * share / (others or 1)) for name, share in zip(names, measured, strict=True))


def prevalence_ratios(task: Task, old: tuple[float, ...], new: tuple[float, ...]) -> tuple[float, ...]:
    """The ratios of `shift_probabilities`: of shares for classes, of odds for labels; 1 where nothing changes."""
    if task == "classification":
        return tuple(b / a for a, b in zip(old, new, strict=True))
    return tuple(1.0 if a == b else b * (1 - a) / ((1 - b) * a) for a, b in zip(old, new, strict=True))


class PrevalenceEstimate(NamedTuple):
    """The estimated prevalence of a class or label among images without targets."""

    name: str
    value: float
    interval: Interval
    """95 %, a bootstrap over the images; the calibration and the validation images' own shares count as exact."""
    validation: float
    """Its prevalence among the validation images."""


def estimate_prevalences(
    table: ClassificationPredictions | MultilabelPredictions, measured: tuple[float, ...], seed: int = 0
) -> tuple[PrevalenceEstimate, ...]:
    """Estimate the prevalences at a new place from the calibrated probabilities of its images; targets are ignored.

    Each is an estimate under prior shift: if images of one class look different there, it is wrong by more than its
    interval says.

    Args:
        table: predictions of the new images at the prevalence of the validation images.
        measured: those prevalences.

    Raises:
        DataError: no images, or a class or label that all or none of the validation images have.

    Source: Saerens, Latinne and Decaestecker 2002, section 2.2: expectation-maximisation of the likelihood.
    """
    if not len(table):
        raise DataError("An estimate of a prevalence needs pictures. The table has no rows.")
    if not all(0 < share < 1 for share in measured):
        name = table.classes[int(np.argmin([share * (1 - share) for share in measured]))]
        raise DataError(f"The validation pictures have {name} all or never, so its prevalence cannot be estimated.")
    wide, prior = table.probabilities.astype(np.float64), np.array(measured)
    if isinstance(table, ClassificationPredictions):
        pairs = _estimate_shares(wide / wide.sum(1, keepdims=True), prior, seed)
    else:
        pairs = [
            _estimate_shares(np.stack([column, 1 - column], 1), np.array([share, 1 - share]), seed)[0]
            for column, share in zip(wide.T, prior, strict=True)
        ]
    return tuple(
        PrevalenceEstimate(name, value, interval, share)
        for name, (value, interval), share in zip(table.classes, pairs, measured, strict=True)
    )


def doubt_estimates(
    validation: ClassificationPredictions | MultilabelPredictions, measured: tuple[float, ...]
) -> tuple[PrevalenceEstimate, ...]:
    """Estimates from the validation images themselves that differ from their own share by more than chance explains.

    An estimate equals the share exactly where the mean probability does. Under calibrated probabilities p the
    difference of those two has the variance sum p (1 - p) / n^2, and of all labels together one in twenty tables is
    doubted by chance (Bonferroni).

    Args:
        validation: with targets, at least one of each class or label.
        measured: their prevalences.
    """
    probabilities, targets = validation.probabilities.astype(np.float64), validation.targets
    assert targets is not None
    if isinstance(validation, ClassificationPredictions):
        known = np.repeat(targets[:, None] >= 0, probabilities.shape[1], 1)
    else:
        known = validation.known_mask
    counts = known.sum(0)
    gaps = np.where(known, probabilities, 0).sum(0) / counts - np.array(measured)
    spreads = np.sqrt(np.where(known, probabilities * (1 - probabilities), 0).sum(0)) / counts
    independent = len(measured) - (isinstance(validation, ClassificationPredictions) and len(measured) == 2)
    bound = NormalDist().inv_cdf(1 - DOUBT_LEVEL / (2 * independent))
    doubted = np.abs(gaps) > bound * spreads
    if not doubted.any():
        return ()
    estimates = estimate_prevalences(validation, measured)
    return tuple(one for one, is_doubted in zip(estimates, doubted.tolist(), strict=True) if is_doubted)


def _estimate_shares(
    probabilities: Float64[np.ndarray, "n K"], prior: Float64[np.ndarray, " K"], seed: int
) -> list[tuple[float, Interval]]:
    likelihoods = probabilities / prior  # of each class, up to a factor of each image
    shares = _maximize_likelihood(likelihoods, prior)
    intervals = bootstrap_intervals(
        likelihoods, lambda rows: _maximize_likelihood(rows, shares), seed, n=BOOTSTRAP_SAMPLES
    )
    return [(float(share), interval or Interval(0.0, 1.0)) for share, interval in zip(shares, intervals, strict=True)]


def _maximize_likelihood(
    likelihoods: Float64[np.ndarray, "n K"], start: Float64[np.ndarray, " K"]
) -> Float64[np.ndarray, " K"]:
    shares = start
    for _ in range(MAX_ROUNDS):
        totals = likelihoods @ shares
        new = shares * (likelihoods.T @ (1 / totals)) / len(likelihoods)
        new = np.asarray(new / new.sum())
        if float(np.abs(new - shares).max()) < TOLERANCE:
            return new
        shares = new
    return shares
