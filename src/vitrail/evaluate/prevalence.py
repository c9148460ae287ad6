"""Prevalence: probabilities moved from the validation images to another prevalence, and its estimate without labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int64

from ..data.source import Task
from ..errors import DataError, UsageError
from ..formatting import format_count
from ..stats.intervals import Interval
from .predictions import LABEL_THRESHOLD, ClassificationPredictions, MultilabelPredictions

MAX_ROUNDS, TOLERANCE = 300, 1e-6
"""Rounds of expectation and maximisation, and the largest change of a share after which they end."""
BOOTSTRAP_SAMPLES = 200
ROOM = 1e-7
"""Smallest probability whose logarithm is taken."""


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
            f"The shares of all {format_count(len(names), 'class', 'classes')} add up to 1. Got {total:g} for "
            f"{', '.join(stated)}; leave one class out and it takes the rest."
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
    """95 %, a bootstrap over these images and over the validation images that calibrate them."""
    validation: float
    """Its prevalence among the validation images."""


def estimate_prevalences(
    table: ClassificationPredictions | MultilabelPredictions,
    validation: ClassificationPredictions | MultilabelPredictions,
    seed: int = 0,
) -> tuple[PrevalenceEstimate, ...]:
    """Estimate the prevalences at a new place from the probabilities of its images; targets are ignored.

    A temperature alone leaves probabilities whose mean differs from the prevalence, and an estimate is wrong by several
    times that. So they are calibrated anew, with an offset for each class, on the validation images. Each is an
    estimate under prior shift: if images of one class look different there, it is wrong by more than its interval says.

    Args:
        table: predictions of the new images at the prevalence of the validation images.
        validation: of the same task, with targets.

    Raises:
        DataError: no images, or a class or label that all, none or an unknown share of the validation images have.

    Source: Saerens, Latinne and Decaestecker 2002, section 2.2: expectation-maximisation of the likelihood; Alexandari,
    Kundaje and Shrikumar 2020, "Maximum likelihood with bias-corrected calibration is hard-to-beat at label shift
    adaptation", for the calibration.
    """
    if not len(table):
        raise DataError("An estimate of a prevalence needs pictures. The table has no rows.")
    measured = measure_prevalences(validation)
    if not all(0 < share < 1 for share in measured):
        name = table.classes[int(np.argmin([share * (1 - share) for share in measured]))]
        raise DataError(f"The validation pictures have {name} all or never, so its prevalence cannot be estimated.")
    there, here = (np.log(np.clip(one.probabilities.astype(np.float64), ROOM, None)) for one in (table, validation))
    assert validation.targets is not None
    if isinstance(validation, ClassificationPredictions):
        known = validation.targets >= 0
        pairs = _estimate_shares(there, here[known], validation.targets[known], seed)
    else:
        pairs = []
        for k, known in enumerate(validation.known_mask.T):
            columns = [_log_with_opposite(one.probabilities[:, k]) for one in (table, validation)]
            without = (validation.targets[known, k] < LABEL_THRESHOLD).astype(np.int64)
            pairs.append(_estimate_shares(columns[0], columns[1][known], without, seed)[0])
    return tuple(
        PrevalenceEstimate(name, value, interval, share)
        for name, (value, interval), share in zip(table.classes, pairs, measured, strict=True)
    )


def _log_with_opposite(probabilities: Float[np.ndarray, " n"]) -> Float64[np.ndarray, "n 2"]:
    wide = probabilities.astype(np.float64)
    return np.log(np.clip(np.stack([wide, 1 - wide], 1), ROOM, None))


def _estimate_shares(
    there: Float64[np.ndarray, "n K"], here: Float64[np.ndarray, "m K"], targets: Int64[np.ndarray, " m"], seed: int
) -> list[tuple[float, Interval]]:
    """The share of each class and its interval.

    Args:
        there, here: logarithms of the probabilities of the new and of the validation images.
    """
    generator, shares_here = np.random.default_rng(seed), np.bincount(targets, minlength=here.shape[1]) / len(targets)
    weights = _fit_recalibration(here, targets)
    shares = _maximize_likelihood(_recalibrate(there, weights) / shares_here, shares_here)
    by_class = [np.flatnonzero(targets == k) for k in range(here.shape[1])]
    samples = []
    for _ in range(BOOTSTRAP_SAMPLES):
        rows = np.concatenate([generator.choice(each, len(each)) for each in by_class])
        drawn = weights - np.linalg.solve(*_newton_parts(here[rows], targets[rows], weights))
        images = generator.integers(0, len(there), len(there))
        samples.append(_maximize_likelihood(_recalibrate(there[images], drawn) / shares_here, shares))
    bounds = np.quantile(samples, (0.025, 0.975), axis=0)
    return [(float(share), Interval(*ends.tolist())) for share, ends in zip(shares, bounds.T, strict=True)]


# -- Bias-corrected temperature scaling: softmax of weights[0] * log p, with weights[k] added for each class k but the
# first; a normal prior of unit variance around p itself keeps the weights of separable classes finite


def _recalibrate(logs: Float64[np.ndarray, "n K"], weights: Float64[np.ndarray, " K"]) -> Float64[np.ndarray, "n K"]:
    return np.exp(_recalibrate_logs(logs, weights))


def _recalibrate_logs(
    logs: Float64[np.ndarray, "n K"], weights: Float64[np.ndarray, " K"]
) -> Float64[np.ndarray, "n K"]:
    from scipy.special import log_softmax

    return np.asarray(log_softmax(weights[0] * logs + np.r_[0.0, weights[1:]], axis=1))


def _newton_parts(
    logs: Float64[np.ndarray, "m K"], targets: Int64[np.ndarray, " m"], weights: Float64[np.ndarray, " K"]
) -> tuple[Float64[np.ndarray, "K K"], Float64[np.ndarray, " K"]]:
    """Hessian and gradient of the penalised log loss, summed over the images."""
    p = _recalibrate(logs, weights)
    means = (p * logs).sum(1)
    over = p.copy()
    over[np.arange(len(targets)), targets] -= 1
    gradient = np.r_[(over * logs).sum(), over[:, 1:].sum(0)] + weights - np.eye(len(weights))[0]
    hessian = np.empty((len(weights), len(weights)))
    hessian[0, 0] = (p * np.square(logs - means[:, None])).sum()
    hessian[0, 1:] = hessian[1:, 0] = (p * (logs - means[:, None]))[:, 1:].sum(0)
    hessian[1:, 1:] = np.diag(p[:, 1:].sum(0)) - p[:, 1:].T @ p[:, 1:]
    return hessian + np.eye(len(weights)), gradient


def _fit_recalibration(logs: Float64[np.ndarray, "m K"], targets: Int64[np.ndarray, " m"]) -> Float64[np.ndarray, " K"]:
    from scipy.optimize import minimize

    def loss(weights: np.ndarray) -> float:
        away = weights - np.eye(len(weights))[0]
        return float(0.5 * away @ away - _recalibrate_logs(logs, weights)[np.arange(len(targets)), targets].sum())

    found = minimize(
        loss, np.eye(logs.shape[1])[0], method="trust-exact", jac=lambda at: _newton_parts(logs, targets, at)[1],
        hess=lambda at: _newton_parts(logs, targets, at)[0],
    )  # fmt: skip
    return np.asarray(found.x)


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
