"""How far probabilities mean what they say, and the temperature that makes them mean it.

A temperature divides the logits of every picture alike: above 1 it makes a model less sure of itself, below 1 more. It
is fitted on validation pictures, kept in the bundle, and applied by every door. It never changes which class is the
likeliest, nor on which side of one half a label lies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Shaped

from ..data.source import Task
from ..errors import UsageError
from ..stats.intervals import Interval, wilson

FEWEST = 100
"""Validation pictures that a temperature needs, and for a label at least 10 of them with it and 10 without."""
FEWEST_OF_A_KIND = 10
BELIEF = 0.5
"""Deviation of the logarithms of temperatures that are believed in beforehand, as much as some ten pictures would tell:
many pictures say what they like, and a few that are all answered rightly cannot ask for endless confidence."""
RANGE = (0.05, 20.0)
BINS = 15


@dataclass(frozen=True)
class Temperature:
    """One number for all classes of a softmax, or one for each label."""

    values: tuple[float, ...]

    def logits(self, outputs: Float[np.ndarray, "n K"]) -> Float64[np.ndarray, "n K"]:
        """Logits of the model, calibrated."""
        return outputs.astype(np.float64) / np.array(self.values)


def fit(task: Task, outputs: Float[np.ndarray, "n K"], targets: Shaped[np.ndarray, " n *K"]) -> Temperature | None:
    """The temperature under which validation pictures are likeliest; None where they are too few, or for numbers.

    It is never less likely than 1. A label with too few pictures keeps its logits as they are.

    Args:
        outputs: logits of the model.
        targets: class numbers [n], -1 where unknown; or labels 0..1 [n, K], NaN where unknown.

    Source: Guo et al. 2017, "On calibration of modern neural networks", with a belief about temperatures added.
    """
    if task == "number":
        return None
    logits = outputs.astype(np.float64)
    if task == "classes":
        known = targets >= 0
        if known.sum() < FEWEST:
            return None
        return Temperature((_likeliest(_class_loss(logits[known], targets[known])),))
    values = tuple(_of_label(logit, truth) for logit, truth in zip(logits.T, targets.T, strict=True))
    return Temperature(values) if any(value != 1 for value in values) else None


def _of_label(logits: np.ndarray, targets: np.ndarray) -> float:
    known = ~np.isnan(targets)
    logits, targets = logits[known], targets[known].astype(np.float64)
    kinds = int((targets >= 0.5).sum()), int((targets < 0.5).sum())
    if sum(kinds) < FEWEST or min(kinds) < FEWEST_OF_A_KIND:
        return 1.0
    return _likeliest(_label_loss(logits, targets))


def _likeliest(loss: Callable[[float], float]) -> float:
    """The temperature with the smallest loss, summed over pictures, and the least disbelief."""
    from scipy.optimize import minimize_scalar

    def unlikely(logarithm: float) -> float:
        return loss(float(np.exp(logarithm))) + logarithm**2 / (2 * BELIEF**2)

    found = minimize_scalar(unlikely, bounds=np.log(RANGE), method="bounded", options={"xatol": 1e-6})
    return float(np.exp(found.x)) if found.fun < unlikely(0.0) else 1.0


def _class_loss(logits: np.ndarray, targets: np.ndarray) -> Callable[[float], float]:
    from scipy.special import logsumexp

    right = logits[np.arange(len(targets)), targets]
    return lambda temperature: float((logsumexp(logits / temperature, axis=1) - right / temperature).sum())


def _label_loss(logits: np.ndarray, targets: np.ndarray) -> Callable[[float], float]:
    return lambda temperature: float((np.logaddexp(0, logits / temperature) - targets * logits / temperature).sum())


class Bin(NamedTuple):
    """Pictures of similar probability."""

    chance: float
    """Their mean probability."""
    share: float
    """How many of them came true."""
    interval: Interval
    """95 % Wilson interval of that share."""
    n: int


def reliability(chances: Float[np.ndarray, " n"], came_true: Bool[np.ndarray, " n"], bins: int = BINS) -> list[Bin]:
    """Bins of equal numbers of pictures, from unlikely to likely; fewer bins where there are fewer pictures."""
    return [
        Bin(
            float(chances[group].mean()),
            float(came_true[group].mean()),
            wilson(int(came_true[group].sum()), len(group)),
            len(group),
        )
        for group in _groups(chances, bins)
    ]


def calibration_error(chances: Float[np.ndarray, " n"], came_true: Bool[np.ndarray, " n"], bins: int = BINS) -> float:
    """How far probabilities lie from shares that came true, on average, and without what chance alone adds.

    In bins of equal numbers of pictures. The plain mean of |share - probability| is above 0 even where all is
    right, the more so the fewer the pictures. Here the sign of a bin's gap comes from one half of its pictures and
    its size from the other, averaged over all halvings: where all is right, the mean of that is 0, and a large gap
    keeps its size. Below 0, which only chance makes it, it is given as 0.

    Raises:
        UsageError: no pictures.

    Source: own; the bias of the plain estimate is described by Roelofs et al. 2022, "Mitigating bias in calibration
    error estimation", and Kumar et al. 2019, "Verified uncertainty calibration".
    """
    from scipy.special import erf

    if not len(chances):
        raise UsageError("A calibration error needs at least one picture. Got none.")
    total = 0.0
    for group in _groups(chances, bins):
        p = chances[group].astype(np.float64)
        gap = abs(float(came_true[group].mean() - p.mean()))
        luck = float(np.sqrt((p * (1 - p)).sum())) / len(group)  # deviation of the gap, if all is right
        if luck > 0:
            density = np.exp(-0.5 * (gap / luck) ** 2) / np.sqrt(2 * np.pi)
            gap = gap * float(erf(gap / luck / np.sqrt(2))) - 2 * luck * float(density)
        total += gap * len(group) / len(chances)
    return max(0.0, total)


def plain_calibration_error(
    chances: Float[np.ndarray, " n"], came_true: Bool[np.ndarray, " n"], bins: int = BINS
) -> float:
    """Mean |share - probability| over bins of equal width, weighted by pictures (ECE); above 0 even where all is right.

    A bin holds its upper edge, not its lower one. Source: Guo et al. 2017, equation 3.
    """
    p = chances.astype(np.float64)
    places = np.clip(np.ceil(p * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(places, came_true - p, minlength=bins)  # pictures * (share - probability)
    return float(np.abs(gaps).sum() / len(p))


def _groups(chances: np.ndarray, bins: int) -> list[np.ndarray]:
    order = np.argsort(chances, kind="stable")
    return [group for group in np.array_split(order, bins) if len(group)]
