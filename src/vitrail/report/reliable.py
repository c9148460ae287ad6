"""Do probabilities mean what they say: how often answers come true by their probability, as charts."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64

from ..evaluate import calibration
from ..evaluate.calibration import MIN_IMAGES_PER_SIDE
from ..evaluate.decisions import Decisions
from ..evaluate.inference import softmax
from ..evaluate.predictions import LABEL_THRESHOLD, MultilabelPredictions
from . import chart

FEWEST = 100
"""Pictures that a chart of shares needs; with fewer it would show noise."""
BINS = 10
MOST = 6
"""Labels with a chart: those that are farthest off."""


class Calibrated(NamedTuple):
    """Calibration with and without the temperature."""

    name: str
    """Of a label; empty for classes."""
    chart: str
    error: float
    before: float | None
    temperature: float | None


def of_classes(probabilities: Float64[np.ndarray, "n K"], right: Bool[np.ndarray, " n"], by: Decisions) -> Calibrated:
    """How often the likeliest class is right.

    The temperature is taken off again by what it does: it raises every probability to the power 1 / temperature.
    """
    plain, temperature = None, None
    if by.temperature:
        (temperature,) = by.temperature
        plain = softmax(temperature * np.log(np.maximum(probabilities, np.finfo(np.float32).tiny))).max(1)
    title = "Accuracy of the answers by their confidence"
    return _calibrated("", probabilities.max(1), right, plain, temperature, ("confidence, %", title))


def of_labels(answers: MultilabelPredictions, by: Decisions) -> list[Calibrated]:
    """How often each label is there, for labels with enough known pictures of either kind; the farthest off first."""
    assert answers.targets is not None
    found = []
    for k, name in enumerate(answers.classes):
        known = answers.known[:, k]
        chances, there = (
            answers.probabilities[known, k].astype(np.float64),
            answers.targets[known, k] >= LABEL_THRESHOLD,
        )
        if len(there) < FEWEST or min(there.sum(), (~there).sum()) < MIN_IMAGES_PER_SIDE:
            continue
        temperature = by.temperature[k] if by.temperature else None
        temperature = None if temperature == 1 else temperature  # one that nobody fitted
        plain = None if temperature is None else _raised(chances, temperature)
        words = ("probability, %", f"Share of pictures with {name} by its probability")
        found.append(_calibrated(name, chances, there, plain, temperature, words))
    return sorted(found, key=lambda one: -one.error)


def _raised(chances: np.ndarray, temperature: float) -> np.ndarray:
    """The sigmoid of the logits as they were before they were divided."""
    inside = np.clip(chances, np.finfo(np.float32).tiny, 1 - np.finfo(np.float32).eps / 2)
    return np.asarray(1 / (1 + ((1 - inside) / inside) ** temperature))


def _calibrated(
    name: str,
    chances: np.ndarray,
    true: np.ndarray,
    plain: np.ndarray | None,
    temperature: float | None,
    words: tuple[str, str],
) -> Calibrated:
    """Args: words: below the axis, and for a screen reader."""
    lines, before = [], None
    if plain is not None:
        before = calibration.debiased_calibration_error(plain, true)
        points = [(100 * one.chance, 100 * one.share) for one in calibration.reliability_curve(plain, true, BINS)]
        lines.append(chart.Line(name="before", points=points, style="faint", dots=True))
    bins = calibration.reliability_curve(chances, true, BINS)
    points = [(100 * one.chance, 100 * one.share) for one in bins]
    spans = [(100 * one.interval.low, 100 * one.interval.high) for one in bins]
    lines.append(chart.Line(name="measured", points=points, style="second", dots=True, spans=spans))
    least = min(min(pair) for line in lines for pair in line.points)
    lowest = max(0.0, 10.0 * math.floor(least / 10) - 5)
    guide = chart.Line(name="perfect", points=[(lowest, lowest), (100.0, 100.0)], style="guide")
    span = (lowest, 102.0)
    drawing = chart.draw([guide, *lines], words[0], "{:g} %".format, span, span, words[1])
    return Calibrated(name, drawing, calibration.debiased_calibration_error(chances, true), before, temperature)
