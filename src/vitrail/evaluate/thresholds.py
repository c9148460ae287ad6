"""Decision thresholds: rules that choose them on validation images, ROC points, and the [decisions] settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, cast, get_args

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

from ..data.source import Task
from ..errors import UsageError
from ..stats.intervals import Interval, wilson_interval
from . import conformal

CaseSetting = Literal["none", "auto", "mean", "max", "attention"]
RuleKind = Literal["half", "f1", "youden", "sensitivity", "specificity", "ppv", "cost"]
MIN_PER_SIDE = 10
"""Validation positives, and negatives, that a rule needs; with fewer the threshold is 0.5."""
DEFAULT_THRESHOLD = 0.5


@dataclass(frozen=True)
class ThresholdRule:
    """A rule that chooses a threshold.

    half            always 0.5
    f1              the largest F1
    youden          the largest sum of sensitivity and specificity
    sensitivity S   the highest threshold with at least this sensitivity
    specificity S   the lowest threshold with at least this specificity
    ppv S           the lowest threshold with at least this positive predictive value
    cost C          the smallest cost, where a false negative costs as much as C false positives
    """

    kind: RuleKind
    value: float | None = None

    @classmethod
    def parse(cls, text: str) -> ThresholdRule:
        """Parse a rule such as "sensitivity 0.95".

        Raises:
            UsageError: no such rule, or a number out of range.
        """
        kind, _, number = text.strip().partition(" ")
        needs_one = kind in ("sensitivity", "specificity", "ppv", "cost")
        try:
            value = float(number) if needs_one else None
            good = kind in get_args(RuleKind) and (needs_one or not number)
        except ValueError:
            good, value = False, None
        top = 1.0 if kind != "cost" else float("inf")
        if not good or (value is not None and not 0 < value < top):
            raise UsageError(
                "A rule for thresholds must be half, f1, youden, sensitivity SHARE, specificity SHARE, ppv SHARE or "
                f'cost NUMBER, for example "sensitivity 0.95". Got {text!r}.'
            )
        return cls(cast("RuleKind", kind), value)

    def __str__(self) -> str:
        return self.kind if self.value is None else f"{self.kind} {self.value:g}"


class Threshold(NamedTuple):
    """A threshold with its sensitivity and specificity on the images it was evaluated on."""

    value: float
    sensitivity: float | None
    sensitivity_interval: Interval
    specificity: float | None
    specificity_interval: Interval
    is_fitted: bool
    """Whether the rule was applied; False with too few images, or where no threshold has the asked predictive value."""


class RocPoints(NamedTuple):
    """Points of a ROC curve, from predicting no image positive to predicting every image positive."""

    thresholds: Float64[np.ndarray, " m"]
    """Falling; each lies half-way between two scores, so that rounding changes no prediction."""
    true_positives: Int64[np.ndarray, " m"]
    """Counts of images with the label predicted positive."""
    false_positives: Int64[np.ndarray, " m"]
    """Counts of images without it predicted positive."""

    @property
    def sensitivity(self) -> Float64[np.ndarray, " m"]:
        """True positive rate."""
        return self.true_positives / self.true_positives[-1]

    @property
    def specificity(self) -> Float64[np.ndarray, " m"]:
        """True negative rate."""
        return 1 - self.false_positives / self.false_positives[-1]


def compute_roc_points(positive: Bool[np.ndarray, " n"], probabilities: Float[np.ndarray, " n"]) -> RocPoints:
    """Compute the points of the ROC curve; needs positives and negatives."""
    scores, numbers = np.unique(-probabilities.astype(np.float64), return_inverse=True)
    scores = -scores  # falling
    ups = np.bincount(numbers, positive).astype(np.int64)
    downs = np.bincount(numbers, ~positive).astype(np.int64)
    ends = np.concatenate([[1.0], scores, [0.0]])
    values = (ends[:-1] + ends[1:]) / 2
    values[0] = max(values[0], np.nextafter(scores[0], 2))  # no image is positive, even if the highest score is 1
    return RocPoints(
        thresholds=values,
        true_positives=np.concatenate([[0], np.cumsum(ups)]),
        false_positives=np.concatenate([[0], np.cumsum(downs)]),
    )


def choose_threshold(
    rule: ThresholdRule,
    positive: Bool[np.ndarray, " n"],
    probabilities: Float[np.ndarray, " n"],
    positive_weight: float = 1.0,
) -> Threshold:
    """Choose the threshold of one label on its known validation images; ties go to the one nearest to 0.5.

    Args:
        positive_weight: what a positive counts, of which the negatives count one each: the odds of the label at a
            stated prevalence, divided by those of the validation images.
    """
    value = None
    if min(int(positive.sum()), int((~positive).sum())) >= MIN_PER_SIDE:
        value = find_best_threshold(rule, compute_roc_points(positive, probabilities), positive_weight)
    is_fitted = value is not None
    return evaluate_threshold(DEFAULT_THRESHOLD if value is None else value, positive, probabilities, is_fitted)


def evaluate_threshold(
    threshold: float, positive: Bool[np.ndarray, " n"], probabilities: Float[np.ndarray, " n"], is_fitted: bool = True
) -> Threshold:
    """Sensitivity and specificity of a threshold on some images."""
    predicted = probabilities >= threshold
    positives, negatives = int(positive.sum()), int((~positive).sum())
    true_positives, true_negatives = int((predicted & positive).sum()), int((~predicted & ~positive).sum())
    return Threshold(
        value=threshold,
        sensitivity=true_positives / positives if positives else None,
        sensitivity_interval=wilson_interval(true_positives, positives),
        specificity=true_negatives / negatives if negatives else None,
        specificity_interval=wilson_interval(true_negatives, negatives),
        is_fitted=is_fitted,
    )


def find_best_threshold(rule: ThresholdRule, points: RocPoints, positive_weight: float = 1.0) -> float | None:
    """The threshold of a rule among the points of a ROC curve; None where no point has the asked predictive value.

    Args:
        positive_weight: as in `choose_threshold`.
    """
    if rule.kind == "half":
        return DEFAULT_THRESHOLD
    sensitivity, specificity, target = points.sensitivity, points.specificity, rule.value or 0.0
    if rule.kind == "sensitivity":
        return float(points.thresholds[int(np.argmax(sensitivity >= target - 1e-12))])
    if rule.kind == "specificity":
        return float(points.thresholds[int(np.flatnonzero(specificity >= target - 1e-12)[-1])])
    hits, false_alarms = positive_weight * points.true_positives, points.false_positives
    positives = hits[-1]
    if rule.kind == "ppv":
        reached = np.flatnonzero((hits > 0) & (hits >= (target - 1e-12) * (hits + false_alarms)))
        return float(points.thresholds[reached[-1]]) if len(reached) else None
    if rule.kind == "youden":
        worth = sensitivity + specificity
    elif rule.kind == "cost":
        worth = -(target * (positives - hits) + false_alarms)
    else:
        worth = 2 * hits / (positives + hits + false_alarms)
    best = np.flatnonzero(worth >= worth.max() - 1e-12)
    return float(points.thresholds[best[np.argmin(np.abs(points.thresholds[best] - DEFAULT_THRESHOLD))]])


# -- Settings: the [decisions] table of a plan


@dataclass(frozen=True, kw_only=True)
class DecisionSettings:
    """How outputs become predictions; everything is fitted on validation images."""

    calibrate: bool = True
    """Divide logits by the temperature under which the validation pictures are likeliest."""
    threshold_rule: str = "f1"
    """From which probability on a label is answered: half, f1, youden, sensitivity SHARE, specificity SHARE, ppv SHARE,
    cost NUMBER (a miss costs as much as so many false alarms)."""
    positive: str = ""
    """Of two classes the one that `rule` chooses a threshold for, such as "defect"; empty answers the likelier one."""
    abstain_fraction: float = 0.0
    """Share of the validation pictures, the least sure, that are not answered; for classes."""
    conformal_alpha: float = 0.05
    """Share of pictures whose class may be missing from their set, or number from its range."""
    ordered: bool = False
    """The classes stand in an order, such as grades, so that a near miss is better than a far one."""
    alpha: float = 0.01
    """With task anomaly: share of good pictures that may be called defects. n good pictures promise 1 / (n + 1) at
    best."""
    case: CaseSetting = "none"
    """The pictures of a group (a patient, a module) are one case with one answer: mean or max of what they say,
    attention by what they show, or auto, which chooses on the validation cases; none answers pictures alone."""

    def __post_init__(self) -> None:
        ThresholdRule.parse(self.threshold_rule)
        conformal.min_calibration_size(self.conformal_alpha)
        if not 0 < self.alpha < 1:
            raise UsageError(f"decisions.alpha must lie between 0 and 1, for example 0.01. Got {self.alpha}.")
        if not 0 <= self.abstain_fraction < 1:
            raise UsageError(f"decisions.abstain_fraction must lie in 0..1. Got {self.abstain_fraction}.")

    def check_task(self, task: Task, classes: tuple[str, ...]) -> None:
        """Refuse settings that do not apply to this task.

        Raises:
            UsageError: names the setting and its purpose.
        """
        usual = DecisionSettings()
        if self.positive and (task != "classification" or len(classes) != 2 or self.positive not in classes):
            known = ", ".join(classes[:10])
            raise UsageError(f"decisions.positive names one of two classes. Got {self.positive!r} for {task}: {known}.")
        if self.threshold_rule != usual.threshold_rule and not (task == "multilabel" or self.positive):
            raise UsageError(
                f"decisions.threshold_rule {self.threshold_rule!r} chooses thresholds of labels, or of one of two "
                f"classes that "
                f"decisions.positive names. The task is {task}; leave it out."
            )
        if self.positive and self.abstain_fraction:
            raise UsageError(
                "decisions.abstain_fraction leaves unanswered what is near one half, and decisions.positive answers "
                "from a threshold "
                "of its own. Give one of them."
            )
        if self.alpha != usual.alpha and task != "anomaly":
            raise UsageError(f"decisions.alpha is for anomaly. The task is {task}; leave it out.")
        for name, value in (("abstain_fraction", self.abstain_fraction), ("ordered", self.ordered)):
            if value and task != "classification":
                raise UsageError(f"decisions.{name} is for classification. The task is {task}; leave it out.")
