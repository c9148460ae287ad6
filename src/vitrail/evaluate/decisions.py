"""Decisions: calibration, thresholds, abstention and conformal sets that turn outputs into predictions.

They are fitted on validation images, stored in the bundle, and the same for every interface.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64, Shaped

from .. import config
from ..data.source import Task
from ..errors import DamagedFileError, UsageError
from . import conformal
from .calibration import MIN_IMAGES, TargetScaling, fit_temperature
from .ood import OOD_ALPHA, fit_ood_threshold
from .predictions import (
    ClassificationPredictions,
    MultilabelPredictions,
    RegressionPredictions,
    TaskPredictions,
    anomaly_fields,
)
from .prevalence import shift_probabilities
from .probabilities import sigmoid, softmax
from .tables import ABSTENTION_UNKNOWN
from .thresholds import DEFAULT_THRESHOLD, DecisionSettings, ThresholdRule, choose_threshold

DECISIONS_KEY = "decisions"
"""Their key in the notes of a bundle."""
ALPHA_TOLERANCE = 1e-9
"""Rounding of the sums in p-values."""
UNSURE, UNLIKE = "unsure", "unlike"
"""Reasons of abstention: confidence below the cutoff, or out of distribution."""


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """Fitted decisions, as a bundle stores them. The defaults change no output."""

    temperature: tuple[float, ...] = ()
    """One for all classes, or one for each label; empty leaves the logits unchanged."""
    rule: str = "half"
    """The threshold rule that was used."""
    thresholds: tuple[float, ...] = ()
    """Probability from which each label, or `positive`, is predicted; empty: 0.5."""
    chosen: tuple[bool, ...] = ()
    """Which thresholds were fitted; the others are 0.5, because there were too few validation images."""
    positive: str = ""
    """The positive one of two classes, which the threshold is for."""
    sure: float = 0.0
    """The confidence below which the model abstains."""
    unlike: float | None = None
    """The out-of-distribution distance beyond which the model abstains."""
    miss: float = 0.05
    """Conformal alpha: fraction of images whose truth may lie outside the set or range."""
    cuts: tuple[float, ...] = ()
    """Probability from which each class belongs to the conformal set."""
    ordered: bool = False
    """Whether the classes are ordinal."""
    reach: tuple[float, ...] = ()
    """Half-width of the conformal range of each column, in its unit; empty with too few validation images."""
    prior_ratio: tuple[float, ...] = ()
    """What a stated prevalence multiplies the share of each class, or the odds of each label, by; empty: nothing."""
    alpha: float = 0.0
    """Of anomaly: an image is called a defect up to this p-value."""
    calibration: tuple[float, ...] = ()
    """Of anomaly: the scores of the good images, each from a bank without it, ascending."""
    calibration_weights: tuple[float, ...] = ()
    """Their weights, where images are exchangeable by groups; empty for 1."""
    version: str = ""
    """The name under which these were kept after the training; empty for the training's own."""

    def describe(self) -> str:
        """The decision in some words."""
        if self.calibration:
            return f"a defect up to a p-value of {self.alpha:.3g}"
        of = f" for {self.positive}" if self.positive else ""
        words = [f"{self.rule}{of}"] if self.thresholds else ["the likeliest class"] * (not self.reach)
        words += [f"unsure below {self.sure:.4f}"] * bool(self.sure)
        words += [f"{'sets' if self.cuts else 'ranges'} miss {self.miss:g}"] * bool(self.cuts or self.reach)
        words += ["at a stated prevalence"] * bool(self.prior_ratio)
        return ", ".join(words)

    def predict_proba(self, task: Task, outputs: Float[np.ndarray, "n K"]) -> Float[np.ndarray, "n K"]:
        """Probabilities of classes or labels, calibrated, at the stated prevalence."""
        logits = outputs.astype(np.float64) / np.array(self.temperature) if self.temperature else outputs
        probabilities = softmax(logits) if task == "classification" else sigmoid(logits)
        return shift_probabilities(task, probabilities, self.prior_ratio) if self.prior_ratio else probabilities

    def predict_classes(
        self, probabilities: Float[np.ndarray, "n K"], names: tuple[str, ...]
    ) -> Int64[np.ndarray, " n"]:
        """int64 [n]: the predicted class of each image."""
        likeliest = probabilities.argmax(1).astype(np.int64) if len(probabilities) else np.zeros(0, np.int64)
        if not (self.positive and self.thresholds):
            return likeliest
        positive = names.index(self.positive)
        return np.where(probabilities[:, positive] >= self.thresholds[0], positive, 1 - positive)

    def predict_labels(self, probabilities: Float[np.ndarray, "n K"]) -> Bool[np.ndarray, "n K"]:
        """bool [n, K]: the predicted labels."""
        return probabilities >= np.array(self.thresholds or (DEFAULT_THRESHOLD,), np.float64)

    def p_values(self, scores: Float[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
        """float64 [n]: for each anomaly score how often that of a good image is as large."""
        return conformal.conformal_p_values(scores, self.calibration, self.calibration_weights)

    @property
    def promise(self) -> conformal.Promise | None:
        """Of anomaly: the rate of false alarms that is promised."""
        if not self.calibration:
            return None
        calibrated = round(sum(self.calibration_weights)) or len(self.calibration)
        return conformal.Promise(self.alpha, calibrated)

    @property
    def alarm_score(self) -> float:
        """The anomaly score above which an image is called a defect."""
        ends = np.nextafter(np.array(self.calibration), np.inf)  # just above each calibration score
        called = np.flatnonzero(self.p_values(ends) <= self.alpha + ALPHA_TOLERANCE)
        return self.calibration[int(called[0])]

    def find_defects(self, p_values: Float64[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        """bool [n]: what is called a defect."""
        return p_values <= self.alpha + ALPHA_TOLERANCE

    def abstain_reasons(
        self, probabilities: Float[np.ndarray, "n K"] | None, distances: Float64[np.ndarray, " n"] | None, n: int
    ) -> tuple[str, ...]:
        """Reason of abstention for each image, "" for one that is answered; () where every image is answered.

        Args:
            probabilities: of classes; None for other tasks.
            distances: out-of-distribution distances; None where they were not computed.
        """
        reasons = np.full(n, "", object)
        if probabilities is not None and n and self.sure:
            reasons[probabilities.max(1) < self.sure] = UNSURE
        if self.unlike is not None and distances is not None:
            reasons[distances > self.unlike] = UNLIKE
        return tuple(reasons.tolist()) if any(reasons) else ()


def predictions_from_outputs(
    task: Task,
    outputs: np.ndarray,
    names: tuple[str, ...],
    scaling: TargetScaling | None,
    rows: Sequence[tuple[str, str]],
    split: str = "",
    targets: np.ndarray | None = None,
    skipped: Sequence[tuple[str, str]] = (),
    decisions: Decisions | None = None,
    distances: np.ndarray | None = None,
    defect_types: np.ndarray | None = None,
    masks: np.ndarray | None = None,
    confidences: np.ndarray | None = None,
    overlaps: np.ndarray | None = None,
) -> TaskPredictions:
    """Build the table of predictions from model outputs.

    Args:
        outputs: of the model, [n, K]; without images any empty array.
        names: of the K outputs.
        scaling: target scaling of regression; None if outputs have the user's units.
        rows: (path, id) of each image.
        targets: int64 [n] for classes, [n, K] for the other tasks.
        decisions: calibration, thresholds and abstention; None applies none.
        distances: out-of-distribution distances, if they were computed.
        defect_types: of anomaly, what the source calls each image.
        masks, confidences, overlaps: of segmentation, whose outputs are the fractions of pixels of each class, as in
            `RegressionPredictions`.
    """
    by = decisions or Decisions()
    shared: dict[str, Any] = {
        "paths": tuple(path for path, _ in rows),
        "ids": tuple(id for _, id in rows),
        "split": split,
        "targets": targets,
        "skipped": tuple(skipped),
        "decision": by.version,
        "distances": distances,
    }
    if task == "anomaly":
        scores = outputs.reshape(len(rows))
        p_values = by.p_values(scores)
        found = by.find_defects(p_values)
        fields = anomaly_fields(scores, p_values, found)
        return ClassificationPredictions(**fields, **shared, defect_types=defect_types)
    outputs = outputs.reshape(len(rows), len(names))
    if task == "segmentation":
        pixels: dict[str, Any] = {"masks": masks, "confidences": confidences, "overlaps": overlaps}
        return RegressionPredictions(columns=names, values=outputs, **pixels, **shared)
    probabilities = None if task == "regression" else by.predict_proba(task, outputs)
    shared["is_unlike_known"] = by.unlike is not None and distances is not None
    shared["abstain_reasons"] = by.abstain_reasons(
        probabilities if task == "classification" else None, distances, len(rows)
    )
    if probabilities is None:
        values = outputs if scaling is None else scaling.unstandardize(outputs)
        return RegressionPredictions(columns=names, values=values, **shared)
    shared |= {"classes": names, "probabilities": probabilities}
    if task == "multilabel":
        return MultilabelPredictions(predicted=by.predict_labels(probabilities), **shared)
    return ClassificationPredictions(predicted=by.predict_classes(probabilities, names), **shared)


# -- Fitting, and reading from a bundle


def fit_decisions(
    task: Task,
    settings: DecisionSettings,
    classes: tuple[str, ...],
    outputs: Float[np.ndarray, "n K"],
    targets: Shaped[np.ndarray, " n *K"],
    distances: Float64[np.ndarray, " n"] | None = None,
    min_images: int = MIN_IMAGES,
) -> Decisions:
    """Fit every decision to validation images; one that has too few of them keeps its default.

    Args:
        outputs: logits, or numbers in the user's units.
        targets: class indices [n], -1 where unknown; or [n, K], NaN where unknown.
        distances: out-of-distribution distances of the images.
        min_images: images that a temperature takes.
    """
    basis = Decisions(
        temperature=fit_temperature(task, outputs, targets, min_images) if settings.calibrate else (),
        ordered=settings.ordered,
        unlike=None if distances is None else fit_ood_threshold(distances),
    )
    answers = outputs if task == "regression" else basis.predict_proba(task, outputs)
    return fit_rules(basis, task, settings, classes, answers, targets)


def fit_anomaly_decisions(
    settings: DecisionSettings,
    scores: Float64[np.ndarray, " n"],
    groups: Shaped[np.ndarray, " n"] | None = None,
) -> Decisions:
    """The decisions from the scores of good images, each from a bank without the image and the others of its group.

    Alpha is at least the smallest p-value that these images allow: with a smaller one nothing would be a defect.
    """
    order = np.argsort(scores, kind="stable")
    weights: tuple[float, ...] = ()
    if groups is not None and len(np.unique(groups)) < len(groups):
        _, numbers, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        weights = tuple((1 / sizes[numbers])[order].tolist())
    calibration = tuple(scores[order].tolist())
    least = conformal.smallest_p_value(calibration, weights)
    return Decisions(alpha=max(settings.alpha, least), calibration=calibration, calibration_weights=weights)


def fit_rules(
    basis: Decisions,
    task: Task,
    settings: DecisionSettings,
    classes: tuple[str, ...],
    answers: Float[np.ndarray, "n K"],
    targets: Shaped[np.ndarray, " n *K"],
) -> Decisions:
    """Fit thresholds, abstention, sets and ranges to the answers for validation images, such as a run has stored.

    Args:
        basis: temperature, out-of-distribution threshold, and the ratio of a stated prevalence, which are kept.
        answers: probabilities at the prevalence of the validation images, numbers in the user's units, or of
            segmentation the areas of its classes.
        targets: as `fit_decisions`; of segmentation the true areas, NaN where unknown.
    """
    basis, ratios = replace(basis, miss=settings.conformal_alpha), basis.prior_ratio
    if task in ("regression", "segmentation"):
        errors = np.abs(answers.astype(np.float64) - targets)
        if (~np.isnan(errors)).sum(0).min() < conformal.min_calibration_size(settings.conformal_alpha):
            return basis
        columns = [column[~np.isnan(column)] for column in errors.T]
        reach = tuple(conformal.conformal_quantile(column, settings.conformal_alpha) for column in columns)
        return replace(basis, reach=reach)
    probabilities = shift_probabilities(task, answers, ratios) if ratios else answers
    if task == "multilabel":
        rule, fitted = ThresholdRule.parse(settings.threshold_rule), []
        for chances, truth, weight in zip(probabilities.T, targets.T, ratios or (1.0,) * len(classes), strict=True):
            known = ~np.isnan(truth)
            fitted.append(choose_threshold(rule, truth[known] >= DEFAULT_THRESHOLD, chances[known], weight))
        values, chosen = tuple(one.value for one in fitted), tuple(one.is_fitted for one in fitted)
        return replace(basis, rule=settings.threshold_rule, thresholds=values, chosen=chosen)
    known = targets >= 0
    cuts: tuple[float, ...] = ()
    if known.sum() >= conformal.min_calibration_size(settings.conformal_alpha):
        cut = conformal.fit_set_threshold(probabilities[known], targets[known], settings.conformal_alpha, ratios)
        cuts = (max(cut, 0.0),) * len(classes)  # no probability is large enough at some prevalences: every class
    sure = 0.0
    if settings.abstain_fraction and len(probabilities):
        confidences = probabilities.max(1).astype(np.float64)
        place = round(settings.abstain_fraction * len(confidences))
        if ratios:  # the share of the pictures at the stated prevalence
            confidences, weights = confidences[known], np.array(ratios)[targets[known]]
            shares = np.cumsum(weights[np.argsort(confidences, kind="stable")]) / weights.sum()
            place = int((shares <= settings.abstain_fraction + 1e-9).sum())
        confidences = np.sort(confidences)
        # half-way between two images, so that rounding changes no decision
        sure = float(confidences[max(0, place - 1) : place + 1].mean()) if place else 0.0
    decisions = replace(basis, cuts=cuts, sure=sure)
    if not settings.positive:
        return decisions
    positive = classes.index(settings.positive)
    threshold = choose_threshold(
        ThresholdRule.parse(settings.threshold_rule),
        targets[known] == positive,
        probabilities[known, positive],
        ratios[positive] / ratios[1 - positive] if ratios else 1.0,
    )
    return replace(
        decisions,
        positive=settings.positive,
        rule=settings.threshold_rule,
        thresholds=(threshold.value,),
        chosen=(threshold.is_fitted,),
    )


def read_decisions(info: Mapping[str, object], task: Task, classes: tuple[str, ...], where: str) -> Decisions:
    """Read the decisions from the notes of a bundle; the defaults where it has none.

    Raises:
        DamagedFileError: the note does not hold decisions about these classes.
    """
    noted = info.get(DECISIONS_KEY, {})
    try:
        if not isinstance(noted, Mapping):
            raise UsageError(f"{DECISIONS_KEY} must be a table. Got {noted!r}.")
        decisions = config.read(Decisions, noted, where)
    except UsageError as error:
        raise DamagedFileError(f"{error} Use another copy.") from error
    K = len(classes)
    expected = {
        "temperature": (decisions.temperature, 1 if task == "classification" else K),
        "thresholds": (decisions.thresholds, 1 if decisions.positive else K),
        "chosen": (decisions.chosen, len(decisions.thresholds)),
        "cuts": (decisions.cuts, K),
        "reach": (decisions.reach, K),
        "prior_ratio": (decisions.prior_ratio, K),
        "calibration_weights": (decisions.calibration_weights, len(decisions.calibration)),
    }
    wrong = [name for name, (values, count) in expected.items() if values and len(values) != count]
    if task == "anomaly" and not (
        decisions.calibration and list(decisions.calibration) == sorted(decisions.calibration)
    ):
        wrong.append("calibration")
    factors = (*decisions.temperature, *decisions.prior_ratio, 1.0)
    if wrong or min(factors) <= 0 or (decisions.positive and decisions.positive not in classes):
        raise DamagedFileError(
            f"{where}: {DECISIONS_KEY} must be about {task} of {', '.join(classes[:10])}. Got {dict(noted)}. Use "
            f"another copy."
        )
    return decisions


# -- Ensembles


def average_decisions(decisions: Sequence[Decisions]) -> Decisions:
    """Mean decisions of an ensemble; a decision that not every model has is dropped.

    Distances of several models have no common threshold: `average_predictions` takes a majority vote instead.
    """
    first, *rest = decisions
    if not rest:
        return first

    def means(values: list[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(np.mean(values, axis=0).tolist()) if all(values) else ()

    return replace(
        first,
        temperature=(),
        unlike=None,
        thresholds=means([one.thresholds for one in decisions]),
        cuts=means([one.cuts for one in decisions]),
        reach=means([one.reach for one in decisions]),
        sure=float(np.mean([one.sure for one in decisions])),
        version=first.version if len({one.version for one in decisions}) == 1 else "",
    )


def average_predictions(tables: Sequence[TaskPredictions], decisions: Decisions) -> TaskPredictions:
    """Average the predictions of an ensemble on the same images; at least half of the models decide on `unlike`.

    Args:
        decisions: from `average_decisions`.
    """
    if len(tables) == 1:
        return tables[0]
    first = replace(tables[0], is_unlike_known=all(one.is_unlike_known for one in tables), distances=None)
    votes = [np.array([why == UNLIKE for why in one.abstain_column()], np.float64) for one in tables]
    unlike = np.asarray(np.mean(votes, axis=0) >= 0.5)
    if isinstance(first, RegressionPredictions):
        values = np.asarray(np.mean([one.values for one in tables if isinstance(one, RegressionPredictions)], axis=0))
        return replace(first, values=values, abstain_reasons=_merge_abstain_reasons(unlike, np.zeros(len(first), bool)))
    several = [one.probabilities for one in tables if not isinstance(one, RegressionPredictions)]
    probabilities = np.asarray(np.mean(several, axis=0, dtype=np.float64)).astype(np.float32)
    if isinstance(first, MultilabelPredictions):
        return replace(
            first,
            probabilities=probabilities,
            predicted=decisions.predict_labels(probabilities),
            abstain_reasons=_merge_abstain_reasons(unlike, np.zeros(len(first), bool)),
        )
    assert isinstance(first, ClassificationPredictions)
    unsure = probabilities.max(1) < decisions.sure if len(first) else np.zeros(0, bool)
    predicted = decisions.predict_classes(probabilities, first.classes)
    return replace(
        first, probabilities=probabilities, predicted=predicted, abstain_reasons=_merge_abstain_reasons(unlike, unsure)
    )


def _merge_abstain_reasons(unlike: np.ndarray, unsure: np.ndarray) -> tuple[str, ...]:
    if not (unlike.any() or unsure.any()):
        return ()
    return tuple(np.where(unlike, UNLIKE, np.where(unsure, UNSURE, "")).tolist())


# -- What a model was not fitted for


def describe_limits(task: Task, decisions: Sequence[Decisions], num_validation: int | None = None) -> list[str]:
    """What too few validation images leave undecided, in sentences; empty where everything was fitted.

    Args:
        decisions: of the models that answer together.
        num_validation: validation images of the training, if they are known.
    """
    num_needed = conformal.min_calibration_size(OOD_ALPHA)
    few = num_validation is not None and num_validation < MIN_IMAGES
    limits = []
    if (task == "classification" or (task == "multilabel" and few)) and any(not one.temperature for one in decisions):
        why = _explain_missing_fit(num_validation, MIN_IMAGES)
        limits.append(f"Probabilities are not calibrated{why}: treat them as a ranking, not as percentages.")
    if task == "segmentation":  # of which it is never fitted
        return []
    if task != "anomaly" and any(one.unlike is None for one in decisions):  # whose score says already what is unlike
        why = _explain_missing_fit(num_validation, num_needed)
        limits.append(f"Which pictures are unlike the training is unknown{why}: abstain says {ABSTENTION_UNKNOWN}.")
    return limits


def _explain_missing_fit(num_validation: int | None, num_needed: int) -> str:
    """How many validation images a fit takes and how many there were, after a comma; empty if there were enough."""
    if num_validation is None:
        return f", which takes {num_needed} validation pictures"
    return f", which takes {num_needed} validation pictures and had {num_validation:,}" * (num_validation < num_needed)


# -- Conformal sets and ranges


def require_sets_support(task: Task, decisions: Decisions) -> None:
    """Check that the model has conformal sets or ranges, before inference.

    Raises:
        UsageError: labels, which have thresholds instead; or nothing was fitted, for example with too few images.
    """
    if task == "anomaly":
        raise UsageError("This model decides by p-values, which promise more than sets. Leave --sets out.")
    if task == "multilabel":
        raise _no_label_sets_error()
    if not (decisions.cuts if task == "classification" else decisions.reach):
        less = "--decisions.conformal_alpha 0.2" if task == "segmentation" else ""
        raise UsageError(
            f"This model has no {'sets' if task == 'classification' else 'ranges'}: to hold the truth in "
            f"{100 * (1 - decisions.miss):.6g}% of all cases they are fitted on at least "
            f"{conformal.min_calibration_size(decisions.miss)} validation pictures with a known target, and its "
            "training had fewer, or was not ours. Train with a larger --data.val_fraction, or promise less: "
            f"{less or 'vitrail decide RUN --alpha 0.1 --keep NAME --use NAME'}"
        )


def add_prediction_sets(
    predictions: TaskPredictions, decisions: Decisions, task: Task | None = None
) -> TaskPredictions:
    """Add the conformal set of classes of each image, or the range of each number; see `conformal` for the guarantee.

    Args:
        task: "segmentation" for areas, whose ranges lie in 0..1.

    Raises:
        UsageError: as `require_sets_support`.
    """
    if isinstance(predictions, ClassificationPredictions):
        require_sets_support("classification", decisions)
        return replace(predictions, sets=conformal.predict_sets(predictions.probabilities, decisions.cuts))
    if isinstance(predictions, RegressionPredictions):
        require_sets_support(task or "regression", decisions)
        around = np.array([-1.0, 1.0]) * np.array(decisions.reach)[:, None]  # [K, 2]
        ranges = (predictions.values[..., None] + around).astype(predictions.values.dtype)
        return replace(predictions, ranges=ranges.clip(0, 1) if task == "segmentation" else ranges)
    raise _no_label_sets_error()


def _no_label_sets_error() -> UsageError:
    return UsageError(
        "Sets are of classes, and ranges of numbers. This model answers each label by itself, from a threshold of its "
        'own on; vitrail decide RUN --rule "sensitivity 0.95" misses fewer of them.'
    )
