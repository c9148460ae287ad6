"""Optimism: by how much validation images flatter a rule that was fitted on them, or the best of several rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from .thresholds import DEFAULT_THRESHOLD, MIN_PER_SIDE, ThresholdRule, compute_roc_points, find_best_threshold

COST_UNIT = 1000.0
"""Images that a cost is counted for."""
MAX_SAMPLES, MIN_SAMPLES, MAX_CELLS = 200, 8, 1_000_000
"""Bootstrap samples, fewer of large validation sets, whose optimism is small: a second in all."""
USUAL_RULES = (
    "half", "f1", "youden", "sensitivity 0.9", "sensitivity 0.95", "sensitivity 0.99", "specificity 0.9",
    "specificity 0.95", "specificity 0.99", "specificity 0.8",
)  # fmt: skip
"""Ten that a user may try; a rule that was asked for takes the place of the last if it is not among them."""


class LabelScores(NamedTuple):
    """Known validation images of one label."""

    positive: Bool[np.ndarray, " n"]
    probabilities: Float[np.ndarray, " n"]
    positive_weight: float = 1.0
    """As in `thresholds.choose_threshold`."""


class RuleOptimism(NamedTuple):
    """Costs of 1,000 images on the validation images that were fitted on, minus those on new images; negative."""

    rule: float
    """Of the asked rule."""
    best: float
    """Of the rule with the lowest cost on the validation images, among `rules`."""
    rules: int
    samples: int
    """Bootstrap samples."""


def measure_optimism(
    rule: ThresholdRule, labels: Sequence[LabelScores], miss_cost: float = 1.0, seed: int = 0
) -> RuleOptimism | None:
    """Bootstrap the optimism of fitting a rule, and of choosing one of ten; None without a label that can be fitted.

    Every sample plays the validation images: rules are fitted on it, the cheapest is chosen on it, and what they cost
    there is compared with what they cost on the validation images themselves.

    Args:
        labels: their costs are added.
        miss_cost: what a miss costs, in false alarms.

    Source: Efron and Tibshirani 1993, "An introduction to the bootstrap", section 17.6; the choice is repeated in
    every sample as in Varma and Simon 2006, "Bias in error estimation when using cross-validation for model selection".
    """
    labels = [one for one in labels if min(one.positive.sum(), (~one.positive).sum()) >= MIN_PER_SIDE]
    if not labels:
        return None
    rules = [rule, *(ThresholdRule.parse(text) for text in USUAL_RULES if text != str(rule))][: len(USUAL_RULES)]
    cells = sum(len(one.positive) for one in labels)
    samples = int(np.clip(MAX_CELLS // cells, MIN_SAMPLES, MAX_SAMPLES))
    gaps = np.array([_sample_gaps(rules, labels, miss_cost, seed, sample) for sample in range(samples)])
    return RuleOptimism(float(gaps[:, 0].mean()), float(gaps[:, 1].mean()), len(rules), samples)


def _sample_gaps(
    rules: Sequence[ThresholdRule], labels: Sequence[LabelScores], miss_cost: float, seed: int, sample: int
) -> tuple[float, float]:
    """Cost on a sample minus cost on all images, of the first rule and of the one that is cheapest on the sample."""
    generator = np.random.default_rng((seed, sample))
    on_sample, on_all = np.zeros(len(rules)), np.zeros(len(rules))
    for label in labels:
        rows = generator.integers(0, len(label.positive), len(label.positive))
        drawn = LabelScores(label.positive[rows], label.probabilities[rows], label.positive_weight)
        few = min(drawn.positive.sum(), (~drawn.positive).sum()) < MIN_PER_SIDE
        points = None if few else compute_roc_points(drawn.positive, drawn.probabilities)
        for number, rule in enumerate(rules):
            found = None if points is None else find_best_threshold(rule, points, drawn.positive_weight)
            threshold = DEFAULT_THRESHOLD if found is None else found
            on_sample[number] += _mean_cost(drawn, threshold, miss_cost)
            on_all[number] += _mean_cost(label, threshold, miss_cost)
    gaps = on_sample - on_all
    return float(gaps[0]), float(gaps[int(on_sample.argmin())])


def _mean_cost(label: LabelScores, threshold: float, miss_cost: float) -> float:
    predicted, weight = label.probabilities >= threshold, label.positive_weight
    misses, alarms = (label.positive & ~predicted).sum(), (~label.positive & predicted).sum()
    total = weight * label.positive.sum() + (~label.positive).sum()
    return float(COST_UNIT * (miss_cost * weight * misses + alarms) / total)
