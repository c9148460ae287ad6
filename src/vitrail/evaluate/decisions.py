"""What turns outputs into answers: fitted on validation pictures, kept in the bundle, the same behind every door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64, Shaped

from .. import config
from ..data.source import Task
from ..errors import DamagedFileError, UsageError
from . import calibration, conformal, thresholds
from .calibration import Temperature
from .inference import sigmoid, softmax
from .ood import fit_ood_threshold
from .thresholds import DEFAULT_THRESHOLD, DecisionSettings, Threshold, ThresholdRule

DECISIONS_KEY = "decisions"
"""What a bundle calls them among its notes."""
UNSURE, UNLIKE = "unsure", "unlike"
"""Why a picture is not answered: no class is likely enough, or nothing like it was in the training."""


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """As a bundle keeps them. Without any, outputs are taken at their word."""

    temperature: tuple[float, ...] = ()
    """One for all classes, or one for each label; none leaves the logits as they are."""
    rule: str = "half"
    """How the thresholds were chosen."""
    thresholds: tuple[float, ...] = ()
    """From which probability on each label is answered, or `positive`; none: from one half on."""
    chosen: tuple[bool, ...] = ()
    """Which thresholds the rule has chosen; the others are one half, because their validation pictures were too few."""
    positive: str = ""
    """Of two classes the one that the threshold is of."""
    sure: float = 0.0
    """The confidence below which no class is answered."""
    unlike: float | None = None
    """The distance from the training pictures beyond which a picture is not answered."""
    miss: float = 0.05
    """Share of pictures that sets and ranges may fail."""
    cuts: tuple[float, ...] = ()
    """From which probability on each class belongs to a picture's set."""
    ordered: bool = False
    """Whether the classes stand in an order, so that near misses are better than far ones."""
    reach: tuple[float, ...] = ()
    """How far each number may lie from its answer, in its unit; none where validation pictures were too few."""

    def predict_proba(self, task: Task, outputs: Float[np.ndarray, "n K"]) -> Float[np.ndarray, "n K"]:
        """Calibrated, of classes or labels."""
        logits = Temperature(self.temperature).scale_logits(outputs) if self.temperature else outputs
        return softmax(logits) if task == "classes" else sigmoid(logits)

    def predict_classes(
        self, probabilities: Float[np.ndarray, "n K"], names: tuple[str, ...]
    ) -> Int64[np.ndarray, " n"]:
        """The answered class of each picture."""
        likeliest = probabilities.argmax(1).astype(np.int64) if len(probabilities) else np.zeros(0, np.int64)
        if not (self.positive and self.thresholds):
            return likeliest
        positive = names.index(self.positive)
        return np.where(probabilities[:, positive] >= self.thresholds[0], positive, 1 - positive)

    def predict_labels(self, probabilities: Float[np.ndarray, "n K"]) -> Bool[np.ndarray, "n K"]:
        """Which labels are answered."""
        return probabilities >= np.array(self.thresholds or (DEFAULT_THRESHOLD,), np.float64)

    def abstain_reasons(
        self, probabilities: Float[np.ndarray, "n K"] | None, distances: Float64[np.ndarray, " n"] | None, n: int
    ) -> tuple[str, ...]:
        """Why each picture is not answered, empty for one that is; nothing where every picture is answered.

        Args:
            probabilities: of classes; None for other tasks.
            distances: from the training pictures; None where nobody has measured them.
        """
        found = np.full(n, "", object)
        if probabilities is not None and n and self.sure:
            found[probabilities.max(1) < self.sure] = UNSURE
        if self.unlike is not None and distances is not None:
            found[distances > self.unlike] = UNLIKE
        return tuple(found.tolist()) if any(found) else ()


def fit_decisions(
    task: Task,
    settings: DecisionSettings,
    classes: tuple[str, ...],
    outputs: Float[np.ndarray, "n K"],
    targets: Shaped[np.ndarray, " n *K"],
    distances: Float64[np.ndarray, " n"] | None = None,
) -> Decisions:
    """What validation pictures say; what they are too few for is left as it is.

    Args:
        outputs: logits, or numbers in the user's units.
        targets: class numbers [n], -1 where unknown; or [n, K], NaN where unknown.
        distances: of the pictures from those of the training.
    """
    temperature = calibration.fit_temperature(task, outputs, targets) if settings.calibrate else None
    basis = Decisions(
        temperature=() if temperature is None else temperature.values,
        miss=settings.conformal_alpha,
        ordered=settings.ordered,
        unlike=None if distances is None else fit_ood_threshold(distances),
    )
    if task == "number":
        return replace(basis, reach=_fit_range_radii(outputs, targets, settings.conformal_alpha))
    probabilities = basis.predict_proba(task, outputs)
    if task == "labels":
        found = _fit_label_thresholds(settings.threshold_rule, probabilities, targets)
        values, chosen = tuple(one.value for one in found), tuple(one.is_fitted for one in found)
        return replace(basis, rule=settings.threshold_rule, thresholds=values, chosen=chosen)
    return _fit_class_decisions(basis, settings, classes, probabilities, targets)


def _fit_class_decisions(
    base: Decisions,
    settings: DecisionSettings,
    classes: tuple[str, ...],
    probabilities: np.ndarray,
    targets: np.ndarray,
) -> Decisions:
    known = targets >= 0
    found = replace(base, cuts=_fit_set_thresholds(probabilities[known], targets[known], settings.conformal_alpha))
    if settings.abstain_fraction and len(probabilities):
        found = replace(found, sure=_confidence_cutoff(probabilities.max(1), settings.abstain_fraction))
    if not settings.positive:
        return found
    positive = classes.index(settings.positive)
    cut = thresholds.choose_threshold(
        ThresholdRule.parse(settings.threshold_rule), targets[known] == positive, probabilities[known, positive]
    )
    return replace(
        found,
        positive=settings.positive,
        rule=settings.threshold_rule,
        thresholds=(cut.value,),
        chosen=(cut.is_fitted,),
    )


def _fit_label_thresholds(rule: str, probabilities: np.ndarray, targets: np.ndarray) -> list[Threshold]:
    """One for each label, from the pictures of which it is known."""
    found = []
    for chances, truth in zip(probabilities.T, targets.T, strict=True):
        known = ~np.isnan(truth)
        found.append(
            thresholds.choose_threshold(ThresholdRule.parse(rule), truth[known] >= DEFAULT_THRESHOLD, chances[known])
        )
    return found


def _fit_set_thresholds(probabilities: np.ndarray, targets: np.ndarray, alpha: float) -> tuple[float, ...]:
    return (
        conformal.fit_conformal_sets(probabilities, targets, alpha).thresholds
        if len(targets) >= conformal.min_calibration_size(alpha)
        else ()
    )


def _fit_range_radii(values: np.ndarray, targets: np.ndarray, alpha: float) -> tuple[float, ...]:
    """Of each column; none at all where one of them has too few known pictures."""
    errors = np.abs(values.astype(np.float64) - targets)
    if (~np.isnan(errors)).sum(0).min() < conformal.min_calibration_size(alpha):
        return ()
    return tuple(conformal.conformal_quantile(column[~np.isnan(column)], alpha) for column in errors.T)


def _confidence_cutoff(confidences: np.ndarray, share: float) -> float:
    """A confidence that this share lies below, half-way between two pictures, so that rounding moves nobody over it."""
    ordered = np.sort(confidences.astype(np.float64))
    place = round(share * len(ordered))
    return float(ordered[max(0, place - 1) : place + 1].mean()) if place else 0.0


def read_decisions(info: Mapping[str, object], task: Task, classes: tuple[str, ...], where: str) -> Decisions:
    """Those that a bundle has noted; none where it has noted none.

    Raises:
        DamagedFileError: what it has noted are no decisions about these classes.
    """
    noted = info.get(DECISIONS_KEY, {})
    try:
        if not isinstance(noted, Mapping):
            raise UsageError(f"{DECISIONS_KEY} must be a table. Got {noted!r}.")
        found = config.read(Decisions, noted, where)
    except UsageError as error:
        raise DamagedFileError(f"{error} Use another copy.") from error
    K = len(classes)
    expected = {
        "temperature": (found.temperature, 1 if task == "classes" else K),
        "thresholds": (found.thresholds, 1 if found.positive else K),
        "chosen": (found.chosen, len(found.thresholds)),
        "cuts": (found.cuts, K),
        "reach": (found.reach, K),
    }
    wrong = [name for name, (values, count) in expected.items() if values and len(values) != count]
    if wrong or min((*found.temperature, 1.0)) <= 0 or (found.positive and found.positive not in classes):
        raise DamagedFileError(
            f"{where}: {DECISIONS_KEY} must be about {task} of {', '.join(classes[:10])}. Got {dict(noted)}. Use "
            f"another copy."
        )
    return found
